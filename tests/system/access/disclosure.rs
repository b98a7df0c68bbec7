//! Tests that responses reveal nothing that the caller may not read: page tokens, waits, schedules, and calls whose token ends
//! while they wait.

use std::io::Write as _;

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_engine::access::Token;
use howdah_proto::v1::{self, RevokeTokensRequest, revoke_tokens_request::Selection, search_jobs_request::Query};
use tonic::Code;

use super::{fixture::Guarded, tokens::status_of};
use crate::support::*;

#[tokio::test]
async fn page_tokens_tell_no_name_of_a_foreign_type() {
    let guarded = Guarded::start().await;
    guarded.admin.enqueue_all(["a", "b.secret", "c", "d.secret"]).await;
    let reader = guarded.caller("r", &["read:a", "read:c"]).await;
    let (mut seen, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListTaskTypesRequest { page_size: 1, page_token, ..Default::default() };
        let page = reader.task_types().list_task_types(request).await.expect("a page").into_inner();
        seen.extend(page.task_types.into_iter().map(|found| found.name));
        page_token = page.next_page_token;
        let decoded = String::from_utf8_lossy(&hex(&page_token)).into_owned();
        assert!(!decoded.contains("secret"), "{decoded}");
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["a", "c"]);
}

/// Returns the bytes of a page token without its authentication code.
fn hex(token: &str) -> Vec<u8> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    token.as_bytes().chunks(2).filter_map(pair).collect()
}

#[tokio::test]
async fn a_search_by_worker_counts_no_jobs_of_foreign_types() {
    let guarded = Guarded::start().await;
    let mut worker = guarded.admin.worker("a").window(1).and("secret").await;
    let mine = guarded.admin.enqueue("a").await;
    guarded.admin.enqueue("secret").await;
    worker.take(2).await;
    let reader = guarded.caller("r", &["read:a"]).await;
    let conditions = v1::JobConditions { worker_id: reader.job(mine).await.worker_id, ..Default::default() };
    let request = v1::SearchJobsRequest { task_type: "a".into(), conditions: Some(conditions), ..Default::default() };
    let found = reader.jobs().search_jobs(request).await.expect("a page").into_inner();
    assert_eq!(found.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [mine]);
    assert_eq!((found.scanned_count, found.estimated_count), (1, 1));
}

#[tokio::test]
async fn a_scan_that_reads_jobs_of_all_types_reports_counts_only_to_those_who_may_read_them() {
    let guarded = Guarded::start().await;
    let mine = guarded.admin.enqueue(new_job("a", "").header("tenant", "x").delay(HOUR)).await;
    guarded.admin.enqueue_all(vec![new_job("secret", "").delay(HOUR); 3]).await;
    let reader = guarded.caller("r", &["read:a"]).await;
    let look = v1::SearchJobsRequest {
        task_type: "a".into(),
        state: v1::JobState::Scheduled.into(),
        since: Some(at(0)),
        query: Some(Query::Header(v1::JobHeader { name: "tenant".into(), value: "x".into() })),
        page_size: 1,
        ..Default::default()
    };
    for (caller, scanned) in [(&guarded.admin, 1), (&reader, 0)] {
        let found = caller.jobs().search_jobs(look.clone()).await.expect("a page").into_inner();
        assert_eq!((found.jobs[0].id, found.scanned_count), (mine, scanned));
        let next = v1::SearchJobsRequest { page_token: found.next_page_token, ..look.clone() };
        let end = caller.jobs().search_jobs(next).await.expect("a page").into_inner();
        assert_eq!((end.jobs.len(), end.scanned_count, end.estimated_count > 0), (0, scanned * 4, scanned > 0));
    }
    let order = v1::JobOrder::Attempts.into();
    let most = v1::ListJobsRequest { task_type: "a".into(), order, ..Default::default() };
    let listed = reader.jobs().list_jobs(most).await.expect("a page").into_inner();
    assert_eq!(listed.scanned_count, 0);
}

#[tokio::test]
async fn a_wait_for_foreign_and_missing_jobs_reports_the_first_of_them_as_not_existing() {
    let guarded = Guarded::start().await;
    let reader = guarded.caller("r", &["read:mine"]).await;
    let foreign = guarded.admin.enqueue(new_job("theirs", "")).await;
    let (missing, other) = (foreign + 1_000, foreign + 2_000);
    let first = async |ids: [i64; 2]| {
        let request = v1::WaitJobsRequest { ids: ids.to_vec(), ..Default::default() };
        let mut answers = reader.jobs().wait_jobs(request).await.expect("a stream").into_inner();
        with_timeout("an answer", answers.message()).await.expect_err("not found").message().to_owned()
    };
    assert!(first([missing, foreign]).await.starts_with(&format!("job {foreign} does not exist")));
    assert!(first([other, missing]).await.starts_with(&format!("job {missing} does not exist")));
}

#[tokio::test]
async fn a_caller_without_the_read_scope_sees_only_the_task_type_of_a_schedules_job() {
    let guarded = Guarded::start().await;
    let job = NewJob::new("t").payload("secret").header("key", "hidden");
    let schedule = NewSchedule::new("s", job, Plan::every(HOUR)).into_proto();
    let request = v1::CreateScheduleRequest { schedule: Some(schedule) };
    guarded.admin.schedules().create_schedule(request).await.expect("create");
    let producer = guarded.caller("p", &["enqueue:t"]).await;
    let request = v1::PauseScheduleRequest { name: "s".into() };
    let paused = producer.schedules().pause_schedule(request).await.expect("pause").into_inner();
    let request = v1::ResumeScheduleRequest { name: "s".into() };
    let resumed = producer.schedules().resume_schedule(request).await.expect("resume").into_inner();
    for shown in [paused.schedule, resumed.schedule] {
        let job = shown.expect("a schedule").template.expect("its job");
        assert_eq!(job, v1::NewJob { task_type: "t".into(), ..v1::NewJob::default() });
    }
}

#[tokio::test]
async fn create_and_update_answer_the_same_when_a_foreign_schedule_has_the_name() {
    let guarded = Guarded::start().await;
    let schedule =
        |task_type: &str| Some(NewSchedule::new("s", NewJob::new(task_type), Plan::every(HOUR)).into_proto());
    let request = v1::CreateScheduleRequest { schedule: schedule("secret") };
    guarded.admin.schedules().create_schedule(request).await.expect("create");
    let producer = guarded.caller("p", &["enqueue:t", "read:t"]).await;
    let create = v1::CreateScheduleRequest { schedule: schedule("t") };
    let created = producer.schedules().create_schedule(create).await.expect_err("the name is taken");
    let update = v1::UpdateScheduleRequest { schedule: schedule("t"), allow_missing: true };
    let updated = producer.schedules().update_schedule(update).await.expect_err("the name is taken");
    assert_eq!((updated.code(), updated.message()), (created.code(), created.message()));
    assert_eq!(updated.code(), Code::AlreadyExists);
    assert!(!updated.message().contains("secret"), "{updated}");
}

#[tokio::test]
async fn a_wait_whose_token_is_revoked_ends_with_unauthenticated_even_if_the_client_reads_late() {
    let guarded = Guarded::start().await;
    // The jobs of the answer are larger than the connection and the broker can buffer, so the `WaitJobs` call is not over when
    // the token is revoked.
    let ids = guarded.admin.enqueue_all(vec![new_job("t", vec![7; 1 << 20]); 12]).await;
    assert_eq!(guarded.admin.cancel(&ids).await, ids);
    let reader = guarded.caller("r", &["read:t", "payload:t", "work:t"]).await;
    let request = v1::WaitJobsRequest { ids, ..Default::default() };
    let mut answers = reader.jobs().wait_jobs(request).await.expect("a stream").into_inner();
    with_timeout("an answer", answers.message()).await.expect("no error").expect("a job");
    let mut stream = reader.worker("t").await;
    // Make 100 calls, so that the broker has time to fill the connection's buffers with responses of `WaitJobs`.
    for _ in 0..100 {
        guarded.admin.enqueue("u").await;
    }
    let selection = Some(Selection::Principal("r".into()));
    guarded.admin.access().revoke_tokens(RevokeTokensRequest { selection }).await.expect("revoke");
    // The broker tells the worker stream and the `WaitJobs` stream at the same time that the credential was revoked.
    stream.drained().await;
    let end = loop {
        match with_timeout("the end of the wait", answers.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the wait ended without an error before it returned every job"),
            Err(end) => break end,
        }
    };
    assert_eq!(end.code(), Code::Unauthenticated, "{end}");
}

#[tokio::test]
async fn a_token_is_not_refused_as_unknown_while_the_token_table_cannot_be_read() {
    let guarded = Guarded::start().await;
    // Inserts the token with SQL and not through a broker, so that no broker has the token in its cache.
    let token = Token::generate();
    let sql = format!(
        "INSERT INTO howdah.token (id, hash, principal, scopes, created_by) VALUES ('{}', '\\x{}', 'ann', '{{enqueue:*}}', '')",
        token.id().as_str(),
        token.hash().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    );
    guarded.broker.sql(&sql).await;
    guarded.broker.sql("ALTER TABLE howdah.token RENAME TO gone").await;
    let ann = guarded.broker.with_token(token.secret());
    let calls = (0..10).map(|_| ann.enqueue("t").answer());
    for refused in futures::future::join_all(calls).await {
        let refused = refused.expect_err("the tokens cannot be read");
        assert_ne!(refused.code(), Code::Unauthenticated, "{refused}");
    }
    guarded.broker.sql("ALTER TABLE howdah.gone RENAME TO token").await;
    ann.enqueue("t").await;
}

#[tokio::test]
async fn a_schedule_whose_jobs_depend_on_a_foreign_job_needs_the_scope_to_read_that_job() {
    let guarded = Guarded::start().await;
    let foreign = guarded.admin.enqueue(new_job("theirs", "")).await;
    let producer = guarded.caller("p", &["enqueue:t", "read:t"]).await;
    let schedule = NewSchedule::new("s", NewJob::new("t"), Plan::every(HOUR)).into_proto();
    let template = schedule.template.clone().map(|job| v1::NewJob { after: vec![foreign], ..job });
    let request = v1::CreateScheduleRequest { schedule: Some(v1::Schedule { template, ..schedule }) };
    let refused = producer.schedules().create_schedule(request).await.expect_err("after");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}

#[tokio::test]
async fn a_pull_that_waits_ends_with_its_token() {
    let guarded = Guarded::start().await;
    let worker = guarded.caller("w", &["work:t"]).await;
    let pull = v1::PullJobsRequest {
        task_types: vec!["t".into()],
        max_jobs: 1,
        wait: Some(wire(MINUTE)),
        ..Default::default()
    };
    let mut workers = worker.workers();
    let waiting = tokio::spawn(async move { workers.pull_jobs(pull).await });
    let selection = Some(Selection::Principal("w".into()));
    guarded.admin.access().revoke_tokens(RevokeTokensRequest { selection }).await.expect("revoke");
    let ended = with_timeout("the end of the pull", waiting).await.expect("a call").expect_err("revoked");
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
}

#[tokio::test]
async fn no_log_shows_a_token_even_with_everything_logged() {
    let [known, unknown] = [Token::generate(), Token::generate()];
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "{} ann enqueue:t read:*", known.secret()).expect("write");
    let (path, database) = (file.path().to_str().expect("a path"), database().await);
    let args = ["--auth", "token", "--auth-token-file", path, "--log", "trace", "--log-format", "json"];
    let (mut broker, log) = Program::serve_logged(&database, &args).await;
    let caller = broker.with_token(known.secret());
    caller.enqueue("t").await;
    for (token, expected) in [(&known, "200"), (&unknown, "401")] {
        let header = format!("Authorization: Bearer {}", token.secret());
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{header}\r\nConnection: close\r\n\r\n");
        assert_eq!(status_of(&broker, &request).await, expected);
    }
    let stranger = broker.with_token(unknown.secret());
    let refused = stranger.jobs().get_job(v1::GetJobRequest { id: 1 }).await.expect_err("unknown");
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    broker.program.signal(rustix::process::Signal::TERM);
    broker.program.ended().await;
    let log = with_timeout("the log", log).await.expect("no panic");
    assert!(log.contains("\"TRACE\""), "the broker does not log at trace level");
    for token in [known, unknown] {
        // Tokens have the form hwd_<id>_<secret>_<check>; the log may contain the id but not the secret.
        let secret = token.secret().split('_').nth(2).expect("a secret").to_owned();
        assert_eq!(log.lines().find(|line| line.contains(&secret)), None, "a token is in the log");
    }
}

#[tokio::test]
async fn a_checkpoint_is_shown_only_with_the_payload() {
    let guarded = Guarded::start().await;
    let id = guarded.admin.enqueue(new_job("t", "")).await;
    let mut worker = guarded.admin.worker("t").await;
    let job = worker.next().await;
    let checkpoint = Some(b"row 7".to_vec().into());
    worker.report(vec![v1::ProgressReport { id, token: job.token, checkpoint, ..Default::default() }]).await;
    assert_eq!(guarded.caller("r", &["read:t", "payload:t"]).await.job(id).await.checkpoint, b"row 7"[..]);
    assert!(guarded.caller("blind", &["read:t"]).await.job(id).await.checkpoint.is_empty());
}
