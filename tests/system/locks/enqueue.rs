//! Tests enqueueing jobs whose keys are locked by an open transaction.

use std::time::Duration;

use futures::future::join_all;
use howdah_proto::v1::{EnqueueJobsRequest, EnqueueOutcome, KeyPolicy};
use tonic::{Code, Request};
use tonic_types::StatusExt as _;

use super::Open;
use crate::support::*;

const ENQUEUE: &str = "SELECT howdah.enqueue('t', 'theirs', key => 'k')";

/// Creates a task type, and opens a transaction that has enqueued a job of the type with a key.
async fn start() -> (TestBroker, Open) {
    start_with(|_| {}).await
}

async fn start_with(change: impl FnOnce(&mut howdah_core::config::Config)) -> (TestBroker, Open) {
    let broker = TestBroker::start_with(change).await;
    broker.enqueue("t").await;
    let open = Open::after(&broker.database, "psql of the night shift", ENQUEUE).await;
    (broker, open)
}

#[tokio::test]
async fn a_locked_key_holds_up_only_the_jobs_with_that_key() {
    let (broker, open) = start_with(|c| c.database_timeout = PATIENCE).await;
    let held_up: Vec<_> = (0..3).map(|_| tokio::spawn(broker.enqueue("t").key("k").outcome())).collect();
    broker.database.until_blocked().await;
    broker.enqueue("t").await;
    broker.enqueue("t").key("other").await;
    broker.enqueue("t").key("replaced").policy(KeyPolicy::Replace).await;
    broker.enqueue("t").request_key("r").outcome().await;
    broker.enqueue("t").delay(HOUR).await;
    broker.enqueue("new-type").key("k").await;
    assert!(held_up.iter().all(|call| !call.is_finished()));
    open.commit().await;
    let outcomes = with_timeout("the blocked enqueues", join_all(held_up)).await;
    let first = broker.count("SELECT job_id FROM howdah.job_key WHERE key = 'k' ORDER BY type_id LIMIT 1").await;
    for outcome in outcomes {
        let outcome = outcome.expect("no panic");
        assert_eq!((outcome.id, outcome.outcome()), (first, EnqueueOutcome::Kept));
    }
}

#[tokio::test]
async fn the_other_jobs_of_a_batch_are_stored_without_the_job_whose_key_is_locked() {
    let (broker, open) = start_with(|c| c.database_timeout = PATIENCE).await;
    let keys = |prefix: &str| (0..40).map(|n| format!("{prefix}-{n}")).collect::<Vec<_>>();
    let locked = tokio::spawn(broker.enqueue("t").key("k").outcome());
    // Enqueues all jobs concurrently, so that many of them share a batch with the job whose key is locked.
    join_all(keys("a").iter().map(|key| broker.enqueue("t").key(key).outcome())).await;
    join_all(keys("b").iter().map(|key| broker.enqueue("t").key(key).policy(KeyPolicy::Replace).outcome())).await;
    assert!(!locked.is_finished());
    open.roll_back().await;
    assert_eq!(
        with_timeout("the enqueue with the locked key", locked).await.expect("no panic").outcome(),
        EnqueueOutcome::New
    );
}

#[tokio::test]
async fn jobs_with_a_locked_key_are_stored_in_their_order() {
    let (broker, open) = start().await;
    let pipeline = |payload: &str| new_job("t", payload).key("k").policy(KeyPolicy::Replace);
    let requests = ["1", "2", "3"]
        .map(|payload| howdah_proto::v1::StreamEnqueueRequest { jobs: vec![pipeline(payload)], ..Default::default() });
    let mut answers = with_timeout("a stream", broker.jobs().stream_enqueue(futures::stream::iter(requests)))
        .await
        .expect("a stream")
        .into_inner();
    broker.database.until_blocked().await;
    open.roll_back().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let answer = with_timeout("an answer", answers.message()).await.expect("a stream").expect("an answer");
        assert_eq!(answer.error, None);
        ids.push(answer.jobs[0].id);
    }
    assert_eq!(ids[0], ids[2]);
    assert_eq!(&broker.job(ids[0]).await.payload[..], b"3");
}

#[tokio::test]
async fn an_enqueue_that_waits_too_long_for_a_locked_key_names_the_backend_with_the_lock() {
    let (broker, open) = start_with(|c| c.database_timeout = Duration::from_secs(8)).await;
    let refused = broker.enqueue("t").key("k").refused().await;
    assert_eq!(refused.code, Code::Aborted, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("the key \"k\" is locked"), "{text}");
    assert!(text.contains(&format!("backend {} (\"psql of the night shift\")", open.pid)), "{text}");
    assert!(text.contains("nothing was stored"), "{text}");
}

#[tokio::test]
async fn an_enqueue_with_a_locked_key_is_answered_before_the_deadline_of_its_call() {
    let (broker, open) = start().await;
    eventually("an answer before the deadline", async || {
        let jobs = vec![new_job("t", "").key("k")];
        let mut request = Request::new(EnqueueJobsRequest { jobs, request_key: String::new() });
        request.set_timeout(Duration::from_secs(4));
        let status = with_timeout("an answer", broker.jobs().enqueue_jobs(request)).await.expect_err("a refusal");
        // The client also enforces the deadline. On a slow machine it may give up before the response arrives, and the test
        // then tries again.
        if status.code() == Code::Cancelled {
            return false;
        }
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(status.message().contains(&format!("backend {}", open.pid)), "{status}");
        true
    })
    .await;
}

#[tokio::test]
async fn an_enqueue_with_a_deadline_succeeds_when_nothing_is_locked() {
    let broker = TestBroker::start().await;
    for jobs in [vec![new_job("t", "")], vec![new_job("t", "").key("k")]] {
        let mut request = Request::new(EnqueueJobsRequest { jobs, request_key: String::new() });
        request.set_timeout(PATIENCE);
        let answer = with_timeout("an answer", broker.jobs().enqueue_jobs(request)).await.expect("an answer");
        assert_eq!(answer.into_inner().jobs.len(), 1);
    }
}

#[tokio::test]
async fn jobs_above_the_limit_of_lock_waiters_are_refused_and_other_jobs_are_stored() {
    let (broker, open) = start_with(|c| c.limits.gathered_jobs = 40).await;
    let waiting: Vec<_> = (0..10).map(|_| tokio::spawn(broker.enqueue("t").key("k").answer())).collect();
    broker.database.until_blocked().await;
    let refused = broker.enqueue_all((0..11).map(|_| new_job("t", "").key("k"))).answer();
    let status = with_timeout("an answer", refused).await.expect_err("a refusal");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.get_error_details().retry_info().is_some());
    broker.enqueue("t").key("other").await;
    open.commit().await;
    for call in waiting {
        with_timeout("an answer", call).await.expect("no panic").expect("an outcome");
    }
}

#[tokio::test]
async fn a_request_key_in_an_open_transaction_holds_up_only_its_repeats() {
    let broker = TestBroker::start_with(|c| c.database_timeout = PATIENCE).await;
    broker.enqueue("t").await;
    let sql = "INSERT INTO howdah.request (key, body_hash, ids) VALUES ('r', '', '{}')";
    let open = Open::after(&broker.database, "psql", sql).await;
    let repeat = tokio::spawn(broker.enqueue("t").request_key("r").outcome());
    broker.database.until_blocked().await;
    broker.enqueue("t").await;
    broker.enqueue("t").request_key("s").outcome().await;
    assert!(!repeat.is_finished());
    open.roll_back().await;
    assert_eq!(with_timeout("the repeated request", repeat).await.expect("no panic").outcome(), EnqueueOutcome::New);
}

#[tokio::test]
async fn a_key_whose_hold_has_ended_under_a_lock_holds_up_its_own_jobs_alone() {
    let (broker, open) = start_with(|c| c.database_timeout = secs(3)).await;
    open.roll_back().await;
    broker.enqueue("t").key("held").key_hold(HOUR).await;
    let mut worker = broker.worker("t").window(2).await;
    for job in worker.take(2).await {
        worker.ack(&job).await;
    }
    broker.sql("UPDATE howdah.job_key SET held_until = now() - interval '1 s'").await;
    let ids = "SELECT last_value FROM howdah.job_id";
    let before = broker.count(ids).await;
    let open = Open::after(&broker.database, "psql", "SELECT FROM howdah.job_key FOR UPDATE").await;
    let held_up = tokio::spawn(broker.enqueue("t").key("held").refused());
    broker.database.until_blocked().await;
    broker.enqueue("other").await;
    broker.enqueue("t").key("other").await;
    let refused = with_timeout("an answer", held_up).await.expect("no panic");
    assert_eq!(refused.code, Code::Aborted, "{refused}");
    assert!(refused.message.contains("the key \"held\" is locked by"), "{refused}");
    // Each retry of the statement uses up an id, so the broker must not retry too often.
    assert!(broker.count(ids).await - before < 100);
    open.roll_back().await;
    assert_eq!(broker.enqueue("t").key("held").outcome().await.outcome(), EnqueueOutcome::New);
}
