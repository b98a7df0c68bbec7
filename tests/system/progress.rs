//! Tests progress reports and checkpoints, and a cancel that reaches a worker at another broker.

use std::time::Duration;

use howdah_client::{Job, JobError};
use howdah_core::config::Config;
use howdah_proto::v1::{
    self, CancelReason, JobState, Progress, ProgressReport, ReportProgressRequest, SettleStatus, work_request,
    work_response,
};
use serde_json::Value;

use crate::support::*;

fn report(job: &v1::LeasedJob, fraction: f64, text: &str) -> ProgressReport {
    let (fraction, text) = (Some(fraction), Some(text.to_owned()));
    ProgressReport { id: job.id, token: job.token, fraction, text, ..Default::default() }
}

fn checkpoint(job: &v1::LeasedJob, bytes: &[u8]) -> ProgressReport {
    let checkpoint = Some(bytes.to_vec().into());
    ProgressReport { id: job.id, token: job.token, checkpoint, ..Default::default() }
}

fn all_ok(results: &[v1::SettleResult]) -> bool {
    results.iter().all(|result| result.status() == SettleStatus::Ok)
}

#[tokio::test]
async fn the_last_report_of_a_job_counts_and_omitted_fields_keep_their_values() {
    let broker = TestBroker::start().await;
    broker.enqueue_all([new_job("p", "x"), new_job("p", "y")]).await;
    let mut worker = broker.worker("p").await;
    let (first, second) = (worker.next().await, worker.next().await);
    assert!(first.checkpoint.is_empty());
    let text_only = ProgressReport { fraction: None, ..report(&first, 0.0, "nearly done") };
    let reports = vec![
        report(&first, 0.1, "begun"),
        report(&second, 1.0, "done"),
        checkpoint(&first, b"row 7"),
        report(&first, 0.5, "half"),
        text_only,
    ];
    let results = worker.report(reports).await;
    assert!(results.len() == 5 && all_ok(&results), "{results:?}");
    let job = broker.job(first.id).await;
    let progress = job.progress.expect("progress");
    assert_eq!((progress.fraction, progress.text.as_str()), (Some(0.5), "nearly done"));
    assert!(progress.update_time.unwrap().seconds >= job.start_time.unwrap().seconds);
    assert_eq!(job.update_time, progress.update_time);
    assert_eq!(&job.checkpoint[..], b"row 7");
    // An empty checkpoint removes the stored checkpoint.
    assert!(all_ok(&worker.report(vec![checkpoint(&first, b"")]).await));
    let job = broker.job(first.id).await;
    assert!(job.checkpoint.is_empty());
    assert_eq!(job.progress.expect("progress").text, "nearly done");
    let stored = "SELECT count(*) FROM howdah.leased WHERE options ? 'checkpoint'";
    assert_eq!(broker.count(stored).await, 0);
}

#[tokio::test]
async fn ten_thousand_progress_reports_are_accepted_and_the_last_one_stays() {
    let broker = TestBroker::start().await;
    broker.enqueue(new_job("p", "x")).await;
    let mut worker = broker.worker("p").await;
    let job = worker.next().await;
    let most = (0..10_000).map(|n| report(&job, f64::from(n) / 10_000.0, &format!("step {n}"))).collect();
    let mut answered = worker.report(most).await.len();
    // Sends 200 progress reports without waiting for results. The reports take effect in the order in which they were
    // sent.
    for n in 0..200 {
        let reports = vec![report(&job, 0.5, &format!("message {n}"))];
        worker.send(work_request::Message::Progress(Progress { reports })).await;
    }
    while answered < 10_200 {
        match worker.message().await.expect("an open stream") {
            Some(work_response::Message::Progressed(progressed)) => {
                assert!(all_ok(&progressed.results));
                answered += progressed.results.len();
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(broker.job(job.id).await.progress.expect("progress").text, "message 199");
}

#[tokio::test]
async fn a_stale_token_changes_no_progress_and_a_bad_report_fails_alone() {
    let broker = TestBroker::start().await;
    broker.enqueue(new_job("p", "x")).await;
    let mut worker = broker.worker("p").await;
    let job = worker.next().await;
    let forged = v1::LeasedJob { token: job.token ^ 1, ..job.clone() };
    let reports = vec![
        report(&forged, 0.9, "forged"),
        report(&job, 0.2, "mine"),
        report(&job, 1.2, "too far"),
        checkpoint(&job, &vec![0; (64 << 10) + 1]),
    ];
    let mut client = broker.workers();
    let request = ReportProgressRequest { reports: reports.clone() };
    let unary = client.report_progress(request).await.expect("an answer").into_inner().results;
    let statuses: Vec<_> = unary.iter().map(|result| result.status()).collect();
    assert_eq!(statuses, [SettleStatus::LeaseLost, SettleStatus::Ok, SettleStatus::Invalid, SettleStatus::Invalid]);
    assert!(unary[2].message.starts_with("reports[2].fraction is 1.2"), "{}", unary[2].message);
    assert!(unary[3].message.starts_with("reports[3].checkpoint has 65537 bytes"), "{}", unary[3].message);
    // Sorts the results of the reports, because on a stream they may arrive in any order.
    let mut stream = worker.report(reports).await;
    stream.sort_by_key(|result| (result.token != job.token, result.status));
    assert_eq!(stream.len(), 4);
    assert_eq!(stream[3].status(), SettleStatus::LeaseLost);
    let shown = broker.job(job.id).await;
    assert_eq!(shown.progress.expect("progress").text, "mine");
    assert!(shown.checkpoint.is_empty());
    let empty = client.report_progress(ReportProgressRequest::default()).await.expect_err("nothing to report");
    assert_eq!(empty.code(), tonic::Code::InvalidArgument);
}

/// Leases the next job and stores a checkpoint. The caller of this function ends the attempt.
async fn lease_with_checkpoint(broker: &TestBroker, worker: &mut Worker, bytes: &[u8]) -> v1::LeasedJob {
    let job = worker.next().await;
    let mut reports = vec![checkpoint(&job, bytes)];
    reports.push(report(&job, 0.5, "half"));
    assert!(all_ok(&worker.report(reports).await), "{}", broker.grpc);
    job
}

#[tokio::test]
async fn a_checkpoint_travels_with_its_job_through_retry_timeout_and_loss_to_history() {
    let broker = TestBroker::start().await;
    let large = "x".repeat(2000); // stored in howdah.payload, with its size in the options
    let id = broker.enqueue("p").payload(large).timeout(HOUR).max_attempts(5).await;
    let mut worker = broker.worker("p").await;
    // The checkpoint survives a retry.
    let job = lease_with_checkpoint(&broker, &mut worker, b"one").await;
    worker.nack(&job, "no").at_once().await;
    let job = worker.next().await;
    assert_eq!((&job.checkpoint[..], job.payload.len(), job.attempt), (&b"one"[..], 2000, 2));
    // The checkpoint survives a timeout, after which the job is scheduled.
    assert!(all_ok(&worker.report(vec![checkpoint(&job, b"two")]).await));
    let sql = broker.database.connect().await;
    sql.execute("UPDATE howdah.leased SET deadline = now() - interval '1 s'", &[]).await.unwrap();
    assert_eq!(worker.cancelled().await.reason(), CancelReason::Timeout);
    sql.execute("UPDATE howdah.scheduled SET run_at = now()", &[]).await.unwrap();
    let job = worker.next().await;
    assert_eq!((&job.checkpoint[..], job.attempt), (&b"two"[..], 3));
    // The checkpoint survives the expiry of a lease that belongs to no broker, such as a pulled lease.
    assert!(all_ok(&worker.report(vec![checkpoint(&job, b"three")]).await));
    drop(worker);
    sql.execute("UPDATE howdah.leased SET broker_id = NULL, deadline = now() - interval '1 s'", &[]).await.unwrap();
    broker.until("the expiry of the lease", "SELECT count(*) = 0 FROM howdah.leased").await;
    sql.execute("UPDATE howdah.scheduled SET run_at = now()", &[]).await.unwrap();
    // A pull also delivers the checkpoint.
    let pulled = broker.pull("p").wait(MINUTE).await;
    assert_eq!((&pulled[0].checkpoint[..], pulled[0].attempt), (&b"three"[..], 4));
    assert_eq!(broker.settle(vec![ack(&pulled[0])]).await, [SettleStatus::Ok]);
    let job = broker.job(id).await;
    assert_eq!(job.state(), JobState::Succeeded);
    assert_eq!((&job.checkpoint[..], job.progress.unwrap().text.as_str()), (&b"three"[..], "half"));
    assert_eq!(job.payload.len(), 2000);
}

#[tokio::test]
async fn a_dead_job_keeps_its_checkpoint_and_the_command_line_shows_it() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("p", "x").max_attempts(1)).await.to_string();
    let mut worker = broker.worker("p").await;
    let job = lease_with_checkpoint(&broker, &mut worker, b"row 7").await;
    worker.nack(&job, "no").at_once().await;
    let (_, shown, _) = run(&["job", &id, "--server", &broker.grpc], b"").await;
    assert!(shown.contains("dead") && shown.contains("progress  50% half"), "{shown}");
    assert!(shown.contains("row 7"), "{shown}");
    let (_, shown, _) = run(&["job", &id, "--json", "--server", &broker.grpc], b"").await;
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!((&shown["progress"]["fraction"], &shown["checkpoint_text"]), (&0.5.into(), &"row 7".into()));
}

#[tokio::test]
async fn a_checkpoint_counts_in_windows_so_that_no_message_is_larger_than_the_worker_accepts() {
    let broker = TestBroker::start().await;
    let ids = broker.enqueue_all((0..20).map(|n| new_job("p", format!("{n}")))).await;
    let mut worker = broker.worker("p").window(20).await;
    let mut reports = Vec::new();
    let mut jobs = Vec::new();
    for _ in &ids {
        let job = worker.next().await;
        reports.push(checkpoint(&job, &vec![7; 64 << 10]));
        jobs.push(job);
    }
    assert!(all_ok(&worker.report(reports).await));
    worker.settle(jobs.iter().map(|job| nack(job, "again").at_once()).collect()).await;
    worker.vanish();
    broker.until("ready jobs", "SELECT count(*) = 20 FROM howdah.ready").await;
    // A job with a checkpoint of 64 KiB does not fit into 70 KiB, because the database returns the checkpoint in base64.
    let _small = broker.worker("p").window(100).max_message_bytes(70 << 10).await;
    let mut medium = broker.worker("p").window(100).max_message_bytes(100 << 10).await;
    for _ in &ids {
        assert_eq!(medium.next().await.checkpoint.len(), 64 << 10);
    }
}

#[tokio::test]
async fn a_handler_continues_from_the_checkpoint_of_the_previous_attempt() {
    let broker = TestBroker::start().await;
    let client = broker.client().await;
    let id = broker.enqueue("count").await;
    let worker = client
        .worker()
        .handle("count", |job: Job| async move {
            let done = job.last_checkpoint().map_or(0, |bytes| bytes[0]);
            job.progress(f64::from(done) / 2.0, format!("{done} of 2")).await?;
            if done == 2 {
                job.progress(None, "all of it").await?;
                return Ok(howdah_client::Outcome::ack("done"));
            }
            let refused = job.progress(2.0, "").await.expect_err("out of bounds");
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            job.checkpoint(vec![done + 1]).await?;
            Err(JobError::retry_after("and so on", Duration::ZERO))
        })
        .max_jobs(3)
        .build();
    let report = with_timeout("three attempts", worker.run()).await.unwrap();
    assert_eq!((report.acked, report.failed), (1, 2));
    let job = broker.job(id).await;
    let progress = job.progress.expect("progress");
    assert_eq!((job.attempt, progress.fraction, progress.text.as_str()), (3, Some(1.0), "all of it"));
}

#[tokio::test]
async fn a_cancel_whose_notification_was_lost_still_reaches_the_worker() {
    let broker = TestBroker::start_with(|config| {
        config.poll_interval = HOUR;
        config.renew_interval = HOUR;
        config.broker_lease = HOUR * 2;
    })
    .await;
    let mut worker = broker.worker("p").await;
    let kept = broker.enqueue(new_job("p", "kept")).await;
    let kept_job = worker.next().await;
    let cancelled = broker.enqueue(new_job("p", "cancelled")).await;
    assert_eq!((kept_job.id, worker.next().await.id), (kept, cancelled));
    let client = broker.database.connect().await;
    let name: String = client.query_one("SELECT current_database()::text", &[]).await.expect("name").get(0);
    let beside = TestDatabase { url: broker.database.url.replace(&name, "postgres") }.connect().await;
    let allow = |connections: bool| format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {connections}");
    beside.batch_execute(&allow(false)).await.expect("no new connections");
    let listeners = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'";
    client.execute(&format!("SELECT pg_terminate_backend(pid) {listeners}"), &[]).await.expect("terminate");
    until_on(&client, "no session that listens", &format!("SELECT count(*) = 0 {listeners}")).await;
    client.execute("SELECT howdah.cancel($1)", &[&cancelled]).await.expect("cancel");
    beside.batch_execute(&allow(true)).await.expect("connections again");
    assert_eq!(worker.cancelled().await.id, cancelled);
    // The broker cancels only the cancelled job, so the other job stays with its worker.
    worker.ack(&kept_job).await;
}

#[tokio::test]
async fn a_cancel_sent_to_one_broker_reaches_the_worker_on_the_other_at_once() {
    let database: TestDatabase = database().await;
    // With a poll interval of an hour, broker `b` can learn of the cancel only by a notification.
    let far = |config: &mut Config| config.poll_interval = HOUR;
    let (a, b) = (TestBroker::on_with(&database, far).await, TestBroker::on_with(&database, far).await);
    // A broker is ready before it listens for notifications. The metric shows when it listens.
    eventually("a broker that listens", async || {
        b.metrics().await.contains(
            "howdah_listening 1
",
        )
    })
    .await;
    let mut worker = b.worker("p").await;
    let id = b.enqueue(new_job("p", "x")).await;
    let job = worker.next().await;
    assert_eq!(a.cancel(&[id]).await, [id]);
    let cancelled = worker.cancelled().await;
    assert_eq!((cancelled.id, cancelled.token, cancelled.reason()), (id, job.token, CancelReason::Cancelled));
    // The worker can no longer report progress of the cancelled job, or settle it.
    assert_eq!(worker.report(vec![report(&job, 1.0, "")]).await[0].status(), SettleStatus::LeaseLost);
    assert_eq!(worker.ack(&job).status().await, SettleStatus::LeaseLost);
    assert_eq!(a.state(id).await, JobState::Cancelled);
}
