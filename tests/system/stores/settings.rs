//! Tests the settings of a task type that several stores have, and may set differently.

use futures::future::join_all;
use howdah_proto::v1::{TaskTypeSettings, UpdateTaskTypeRequest};
use prost_types::FieldMask;
use tonic::Code;

use super::calls::{at, enqueue_at, two};
use crate::{support::*, ui::client::Browser, ui::client::question};

/// Starts a broker whose stores shop and mail have the type `t`, with 3 and with 5 attempts.
async fn different() -> (TestDatabase, TestDatabase, TestBroker) {
    let (shop, mail, broker) = two().await;
    for (store, max_attempts) in [("shop", 3), ("mail", 5)] {
        enqueue_at(&broker, store, "t").await;
        let settings = Some(TaskTypeSettings { max_attempts, ..Default::default() });
        let request = UpdateTaskTypeRequest { task_type: "t".into(), settings, update_mask: None };
        with_timeout("a change", broker.task_types().update_task_type(at(store, request))).await.expect("settings");
    }
    (shop, mail, broker)
}

/// Value of an SQL expression about the type `t`, in each database.
async fn each<const N: usize>(databases: [&TestDatabase; N], expression: &str) -> Vec<i64> {
    let sql = format!("SELECT ({expression})::bigint FROM howdah.task_type WHERE name = 't'");
    let mut values = Vec::new();
    for database in databases {
        values.push(database.count(&sql).await);
    }
    values
}

const ATTEMPTS: &str = "coalesce(max_attempts, 0)";

#[tokio::test]
async fn a_command_changes_the_given_settings_in_each_store_and_shows_where_they_differ() {
    let (shop, mail, broker) = different().await;
    let howdah = async |args: &[&str]| run(&[args, &["--server", &broker.grpc]].concat(), b"").await;
    let (status, out, err) = howdah(&["type", "set", "t", "--history-days", "9"]).await;
    assert!(status.success(), "{err}");
    assert_eq!(out, "max-attempts 3, history-days 9\n");
    assert_eq!(err, "these are the settings in store shop; others differ (howdah type show t)\n");
    assert_eq!(each([&shop, &mail], ATTEMPTS).await, [3, 5]);
    assert_eq!(each([&shop, &mail], "coalesce(history_days, 0)").await, [9, 9]);

    let (_, out, _) = howdah(&["type", "show", "t"]).await;
    for line in ["max-attempts        3 in shop, 5 in mail", "history-days        9", "timeout             -"] {
        assert!(out.lines().any(|shown| shown == line), "{line:?} is not in {out}");
    }
    let (status, _, err) = howdah(&["type", "show", "t", "--json"]).await;
    assert!(!status.success());
    assert!(
        err.contains("the settings of t differ between the stores shop, mail: select one with --in-store"),
        "{err}"
    );
    let (_, out, _) = howdah(&["--in-store", "mail", "type", "show", "t", "--json"]).await;
    assert!(out.contains("\"max_attempts\":5"), "{out}");

    howdah(&["--in-store", "mail", "type", "set", "t", "--unset", "history-days"]).await;
    assert_eq!(each([&shop, &mail], "coalesce(history_days, 0)").await, [9, 0]);
    let (_, _, err) = howdah(&["type", "set", "t", "--max-attempts", "4", "--unset", "history-days"]).await;
    assert_eq!(err, "", "the stores have the same settings");
    assert_eq!(each([&shop, &mail], ATTEMPTS).await, [4, 4]);
}

#[tokio::test]
async fn the_note_after_a_pause_of_a_limit_key_counts_the_jobs_of_all_stores() {
    let (shop, mail, broker) = two().await;
    for database in [&shop, &mail] {
        database.sql("SELECT howdah.enqueue('t', 'x'::text, limit_key => 'l')").await;
    }
    let (_, _, err) = run(&["limit", "pause", "t", "l", "--server", &broker.grpc], b"").await;
    assert_eq!(err, "limit key \"l\" of t is paused: 2 waiting, 0 running\n");
}

#[tokio::test]
async fn a_client_pauses_applies_and_counts_a_type_in_all_stores() {
    let (shop, mail, broker) = different().await;
    let client = broker.client().await;
    client.pause_task_type("t").await.expect("a pause");
    assert_eq!(each([&shop, &mail], ATTEMPTS).await, [3, 5]);
    assert_eq!(each([&shop, &mail], "coalesce(paused, false)::integer").await, [1, 1]);
    client.in_store("mail").expect("a store").resume_task_type("t").await.expect("a resume");
    let settings = TaskTypeSettings { max_attempts: 7, ..Default::default() };
    client.apply_task_type("t", settings).await.expect("settings");
    assert_eq!(each([&shop, &mail], ATTEMPTS).await, [7, 7]);
    assert_eq!(each([&shop, &mail], "coalesce(paused, false)::integer").await, [1, 0], "a pause stays");
    let found = client.get_task_type("t").await.expect("an answer").expect("a type");
    assert_eq!((found.store.as_str(), found.counts.map(|counts| counts.ready)), ("shop, mail", Some(2)));
}

#[tokio::test]
async fn the_page_changes_and_shows_the_settings_of_each_store() {
    let (shop, mail, broker) = different().await;
    let mut browser = Browser::at(&broker);
    browser.get("/ui/type?name=t").await.has(&["class=\"long\">3 <span class=\"hint\">in shop; 5 in mail</span></td>"]);
    // A browser sends every field of the form, with the values of the first store.
    let form = [("do", "set-type"), ("type", "t"), ("back", "/"), ("max_attempts", "3"), ("history_days", "9")];
    let preview = question(&browser, &form).await.has(&["<dt>Days of history</dt>"]).has_no(&["Attempts"]);
    browser.confirm(&preview, "").await;
    assert_eq!(each([&shop, &mail], ATTEMPTS).await, [3, 5]);
    assert_eq!(each([&shop, &mail], "coalesce(history_days, 0)").await, [9, 9]);
    let form = [("do", "set-type"), ("type", "t"), ("back", "/"), ("max_attempts", "4")];
    let preview = question(&browser, &form).await;
    let preview = preview.has(&["<dd>3 → 4 (store shop)</dd>", "<dd>5 → 4 (store mail)</dd>"]);
    browser.confirm(&preview, "").await;
    assert_eq!(each([&shop, &mail], ATTEMPTS).await, [4, 4]);

    let request = UpdateTaskTypeRequest {
        task_type: "t".into(),
        settings: Some(TaskTypeSettings { max_attempts: 6, paused: true, ..Default::default() }),
        update_mask: None,
    };
    with_timeout("a change", broker.task_types().update_task_type(at("mail", request))).await.expect("settings");
    let both = ["paused in mail", "value=\"resume-type\"", "value=\"pause-type\""];
    browser.get("/ui/type?name=t").await.has(&both);
    let preview = question(&browser, &[("do", "pause-type"), ("type", "t"), ("back", "/")]).await;
    browser.confirm(&preview, "").await;
    assert_eq!(each([&shop, &mail], ATTEMPTS).await, [4, 6]);
    assert_eq!(each([&shop, &mail], "paused::integer").await, [1, 1]);
    browser.get("/ui/type?name=t").await.has(&["value=\"resume-type\""]).has_no(&["paused in", "value=\"pause-type\""]);
}

fn change(settings: TaskTypeSettings, path: &str) -> UpdateTaskTypeRequest {
    let update_mask = Some(FieldMask { paths: vec![path.into()] });
    UpdateTaskTypeRequest { task_type: "t".into(), settings: Some(settings), update_mask }
}

#[tokio::test]
async fn concurrent_calls_each_change_only_their_own_settings() {
    let broker = TestBroker::start().await;
    let all = TaskTypeSettings {
        max_attempts: 2,
        history_days: 3,
        dead_days: 4,
        max_backlog: 5,
        max_running: 6,
        key_max_running: 7,
        paused: true,
        fallback: "t.failed".into(),
        ..Default::default()
    };
    let paths = [
        "max_attempts",
        "history_days",
        "dead_days",
        "max_backlog",
        "max_running",
        "key_max_running",
        "paused",
        "fallback",
    ];
    let calls = paths.map(|path| {
        let (service, request) = ((*broker).clone(), change(all.clone(), path));
        tokio::spawn(async move { service.task_types().update_task_type(request).await })
    });
    for answer in with_timeout("all answers", join_all(calls)).await {
        answer.unwrap().expect("a change");
    }
    let found = broker.client().await.get_task_type("t").await.expect("an answer").expect("a type");
    assert_eq!(found.settings, Some(all));
}

#[tokio::test]
async fn a_change_that_does_not_fit_the_settings_of_one_store_names_the_stores() {
    let (shop, mail, broker) = different().await;
    let limit = change(TaskTypeSettings { key_max_running: 1, ..Default::default() }, "key_max_running");
    with_timeout("a change", broker.task_types().update_task_type(at("shop", limit))).await.expect("settings");
    let strict = change(TaskTypeSettings { key_strict_order: true, ..Default::default() }, "key_strict_order");
    let refused = with_timeout("an answer", broker.task_types().update_task_type(strict)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let problem = "settings.key_strict_order is set without key_max_running; set that too; stores changed: shop; stores \
                   not confirmed: mail";
    assert_eq!(refused.message(), problem);
    assert_eq!(each([&shop, &mail], "coalesce(key_strict, false)::integer").await, [1, 0]);
    let unknown = change(TaskTypeSettings::default(), "prio");
    let refused = with_timeout("an answer", broker.task_types().update_task_type(unknown)).await.unwrap_err();
    assert!(
        refused.message().starts_with("update_mask.paths[0] \"prio\" is no field of TaskTypeSettings"),
        "{refused}"
    );
}
