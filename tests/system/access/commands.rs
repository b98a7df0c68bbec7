//! Tests the management of tokens on the command line.

use serde_json::Value;

use super::fixture::Guarded;
use crate::support::*;

#[tokio::test]
async fn a_token_is_made_without_a_broker_used_listed_and_revoked() {
    let guarded = Guarded::start().await;
    let server = ["--server", &guarded.broker.grpc];
    let url = &guarded.broker.database.url;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ops.token");
    let create = [
        "token",
        "create",
        "ops",
        "--scope",
        "admin:*",
        "--scope",
        "enqueue:*",
        "--without-broker",
        "--database-url",
        url,
    ];
    let (status, token, stderr) = run(&create, b"").await;
    assert!(status.success(), "{stderr}");
    assert!(stderr.contains("not shown again") && !stderr.contains(token.trim()), "{stderr}");
    std::fs::write(&path, &token).unwrap();
    let file = ["--token-file", path.to_str().unwrap()];

    let (status, _, stderr) = run(&[&["enqueue", "t", "p"], &server[..]].concat(), b"").await;
    assert_eq!(status.code(), Some(77), "{stderr}");
    assert!(stderr.contains("--token-file"), "{stderr}");
    let (status, _, stderr) = run(&[&["enqueue", "t", "p"], &server[..], &file].concat(), b"").await;
    assert!(status.success(), "{stderr}");
    let (status, _, stderr) = run(&[&["jobs", "t"], &server[..], &file].concat(), b"").await;
    assert_eq!(status.code(), Some(77), "{stderr}");
    assert!(stderr.contains("read:"), "{stderr}");

    let made =
        [&["token", "create", "mailer", "--scope", "enqueue:mail.*", "--expires", "90d", "--json"], &server[..], &file];
    let (status, out, stderr) = run(&made.concat(), b"").await;
    assert!(status.success(), "{stderr}");
    let made: Value = serde_json::from_str(&out).unwrap();
    let made = &made["token"];
    assert_eq!(made["principal"], "mailer");
    let (_, list, _) = run(&[&["token", "list"], &server[..], &file].concat(), b"").await;
    assert!(list.contains("mailer") && list.contains("enqueue:mail.*") && !list.contains(token.trim()), "{list}");
    let id = made["id"].as_str().unwrap();
    let (status, out, _) = run(&[&["token", "revoke", id], &server[..], &file].concat(), b"").await;
    assert_eq!((status.success(), out), (true, format!("revoked {id}\n")));
    let (status, _, stderr) =
        run(&[&["token", "create", "x", "--scope", "all:*"], &server[..], &file].concat(), b"").await;
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("enqueue, work, read"), "{stderr}");
}

#[tokio::test]
async fn draining_with_a_token_that_may_not_count_jobs_says_which_scope_is_missing() {
    let guarded = Guarded::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, guarded.token("mailer", &["work:mail.*"]).await).unwrap();
    let work = ["work", "mail.a", "--exec", "cat", "--drain", "--server", &guarded.broker.grpc];
    let (status, _, stderr) = run(&[&work[..], &["--token-file", path.to_str().unwrap()]].concat(), b"").await;
    assert_eq!(status.code(), Some(77), "{stderr}");
    assert!(stderr.contains("--drain") && stderr.contains("read:"), "{stderr}");
}
