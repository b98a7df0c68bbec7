//! Tests that refused calls are counted and logged.

use std::io::Write as _;

use howdah_engine::access::Token;

use super::*;

#[tokio::test]
async fn refused_calls_are_counted_by_reason() {
    let guarded = Guarded::start().await;
    let nobody = guarded.broker.with_token("hwd_0_0_0");
    let reader = guarded.caller("reader", &["read:*"]).await;
    let settings = v1::GetSettingsRequest {};
    assert_eq!(nobody.settings().get_settings(settings).await.unwrap_err().code(), Code::Unauthenticated);
    // Three calls without permission, refused in different parts of the broker: by the method's access rule (a cancel),
    // by the handler (payloads) and within a stream (a subscription).
    let cancel = v1::CancelJobsRequest { ids: vec![1], ..Default::default() };
    assert_eq!(reader.jobs().cancel_jobs(cancel).await.unwrap_err().code(), Code::PermissionDenied);
    let list = v1::ListJobsRequest { task_type: "t".into(), include_payload: true, ..Default::default() };
    assert_eq!(reader.jobs().list_jobs(list).await.unwrap_err().code(), Code::PermissionDenied);
    let worker = guarded.caller("worker", &["work:mine"]).await;
    assert!(worker.worker("theirs").answer().await.is_err());
    let token = guarded.token("prometheus", &["read:*"]).await;
    let metrics = guarded.broker.with_token(&token).metrics().await;
    assert!(metrics.contains("howdah_refused_calls_total{reason=\"unauthenticated\"} 1"), "{metrics}");
    assert!(metrics.contains("howdah_refused_calls_total{reason=\"permission_denied\"} 3"), "{metrics}");
}

#[tokio::test]
async fn the_log_says_who_was_refused_what_and_shows_no_credential() {
    let (ann, stranger) = (Token::generate(), Token::generate());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{} ann read:*", ann.secret()).unwrap();
    let (database, path) = (database().await, file.path().to_str().unwrap());
    let (mut broker, log) = Program::serve_logged(&database, &["--auth", "token", "--auth-token-file", path]).await;
    for (token, expected) in [(&stranger, Code::Unauthenticated), (&ann, Code::PermissionDenied)] {
        let request = v1::CancelJobsRequest { ids: vec![1], ..Default::default() };
        let refused = broker.with_token(token.secret()).jobs().cancel_jobs(request).await.unwrap_err();
        assert_eq!(refused.code(), expected, "{refused}");
    }
    broker.program.signal(rustix::process::Signal::TERM);
    broker.program.ended().await;
    let log = with_timeout("the log", log).await.unwrap();
    for (reason, who) in [("unauthenticated", &**stranger.id()), ("permission_denied", "ann")] {
        let line = log.lines().find(|line| line.contains("refused a call") && line.contains(reason)).expect(&log);
        assert!(["CancelJobs", "127.0.0.1:", who].iter().all(|word| line.contains(word)), "{line}");
    }
    for token in [ann, stranger] {
        let secret = token.secret().split('_').nth(2).unwrap();
        assert!(!log.contains(secret), "{log}");
    }
}
