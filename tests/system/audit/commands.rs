//! Tests the command `howdah audit` and the flag `--reason`.

use serde_json::Value;

use super::*;

#[tokio::test]
async fn a_reason_is_listed_with_who_and_what_page_by_page() {
    let guarded = Guarded::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, guarded.token("ops", &["operate:*", "admin:*"]).await).unwrap();
    let common = ["--server", &*guarded.broker.grpc, "--token-file", path.to_str().unwrap()];
    let id = guarded.admin.enqueue("t").await.to_string();
    let (status, _, stderr) =
        run(&[&["cancel", &id, "--reason", "100% für Ticket 42"], &common[..]].concat(), b"").await;
    assert!(status.success(), "{stderr}");
    let audit = [&["audit", "--json", "--since", "1h", "--principal", "ops", "--id", &id], &common[..]].concat();
    let (status, out, stderr) = run(&audit, b"").await;
    assert!(status.success(), "{stderr}");
    let entry: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(
        (&entry["principal"], &entry["method"], &entry["reason"], &entry["ids"][0]),
        (&"ops".into(), &"CancelJobs".into(), &"100% für Ticket 42".into(), &id.clone().into())
    );
    let (_, table, _) = run(&[&["audit"], &common[..]].concat(), b"").await;
    assert!(table.contains("PRINCIPAL") && table.contains("Ticket 42") && table.contains("CreateToken"), "{table}");

    // Reads the audit log in pages of one entry, newest first, without gaps.
    let mut request = v1::ListAuditRequest { page_size: 1, ..Default::default() };
    let mut seen = Vec::new();
    loop {
        let page = guarded.admin.access().list_audit(request.clone()).await.unwrap().into_inner();
        seen.extend(page.entries.into_iter().map(|entry| entry.method));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(seen, ["CancelJobs", "CreateToken"]);
}

#[tokio::test]
async fn the_audit_is_listed_by_task_type() {
    let broker = TestBroker::start().await;
    let (mail, other) = (broker.enqueue("mail").await.to_string(), broker.enqueue("other").await.to_string());
    let listed = async |args: &[&str]| {
        let (status, out, stderr) = run(&[args, &["--server", &*broker.grpc]].concat(), b"").await;
        assert!(status.success(), "{args:?}: {stderr}");
        let method = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["method"].clone();
        out.lines().filter(|line| line.starts_with('{')).map(method).collect::<Vec<Value>>()
    };
    listed(&["cancel", &other]).await;
    listed(&["cancel", &mail]).await;
    listed(&["type", "set", "mail", "--max-running", "3"]).await;
    listed(&["schedule", "create", "nightly", "other", "x", "--every", "1h"]).await;
    let of = async |task_type| listed(&["audit", "--json", "--type", task_type]).await;
    assert_eq!(of("mail").await, ["UpdateTaskType", "CancelJobs"]);
    assert_eq!(of("other").await, ["CreateSchedule", "CancelJobs"]);
    assert_eq!(of("none").await, [""; 0]);
}

#[tokio::test]
async fn a_token_made_without_a_broker_is_recorded_too() {
    let database = database().await;
    let create = [
        "token",
        "create",
        "ops",
        "--scope",
        "admin:*",
        "--without-broker",
        "--database-url",
        &database.url,
        "--reason",
        "first",
    ];
    let (status, _, stderr) = run(&create, b"").await;
    assert!(status.success(), "{stderr}");
    let rows = entries(&database).await;
    let [entry] = &rows[..] else { panic!("{rows:?}") };
    assert!(entry.principal.starts_with("sql:"), "{entry:?}");
    assert_eq!((&*entry.method, &*entry.reason), ("howdah token create", "first"));
}

#[tokio::test]
async fn a_reason_that_is_too_long_or_not_plain_is_refused() {
    let guarded = Guarded::start().await;
    for (rpc, reason) in [(Rpc::CancelJobs, "x".repeat(501)), (Rpc::UpdateSettings, "a%0Ab".into())] {
        let subject = prepare(&guarded.admin, rpc).await;
        let refused = act(&guarded.admin, rpc, &subject, Some(&reason)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with("howdah-reason"), "{refused}");
    }
    assert_eq!(entries(&guarded.broker.database).await, []);
}

#[tokio::test]
async fn a_change_of_settings_is_recorded_with_old_and_new_values() {
    let broker = TestBroker::start().await;
    let change = async |args: &[&str]| {
        let (status, _, stderr) = run(&[args, &["--server", &*broker.grpc]].concat(), b"").await;
        assert!(status.success(), "{args:?}: {stderr}");
        let request = v1::ListAuditRequest { page_size: 1, ..Default::default() };
        let page = broker.access().list_audit(request).await.unwrap().into_inner();
        page.entries[0].changes.clone()
    };
    let set = change(&["type", "set", "mail", "--max-running", "3"]).await;
    assert_eq!(set, ["max_running: unset -> 3"]);
    let set = change(&["type", "set", "mail", "--max-running", "5", "--max-attempts", "7"]).await;
    assert_eq!(set, ["max_attempts: unset -> 7", "max_running: 3 -> 5"]);
    assert_eq!(change(&["settings", "set", "batch=2000"]).await, ["batch: 10000 -> 2000"]);
    let created = change(&["schedule", "create", "nightly", "mail", "x", "--every", "1h"]).await;
    assert_eq!(created, [""; 0]);
    assert_eq!(change(&["schedule", "pause", "nightly"]).await, ["paused: false -> true"]);
    let (_, listed, _) = run(&["audit", "--server", &broker.grpc], b"").await;
    assert!(listed.contains("max_attempts: unset -> 7, max_running: 3 -> 5"), "{listed}");
}

#[tokio::test]
async fn the_limit_of_a_limit_key_is_changed_with_a_reason() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let server = ["--server", &*broker.grpc];
    let set = ["limit", "set", "t", "k", "--max-running", "2", "--reason", "too many at once"];
    let unset = ["limit", "unset", "t", "k", "--reason", "enough"];
    for command in [&set[..], &unset] {
        let (status, _, stderr) = run(&[command, &server].concat(), b"").await;
        assert!(status.success(), "{command:?}: {stderr}");
    }
    let (status, out, stderr) = run(&[&["audit", "--json", "--id", "k"][..], &server].concat(), b"").await;
    assert!(status.success(), "{stderr}");
    let reasons = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["reason"].clone());
    assert_eq!(reasons.collect::<Vec<_>>(), ["enough", "too many at once"]);
}
