//! Tests that a newer version of a job waits for a running version, and replaces it if it fails.

use howdah_proto::v1::{HolderFailure, JobState, NewJob};

use crate::support::*;

fn version(number: i64) -> NewJob {
    new_job("index", number.to_string()).key("doc-7").replace_if_newer(number).retry_after_each(HOUR)
}

#[tokio::test]
async fn a_newer_version_runs_at_once_when_an_attempt_of_the_older_version_fails() {
    let broker = TestBroker::start().await;
    let old = broker.enqueue(version(1)).await;
    let child = broker.enqueue(new_job("after", "").after(&[old])).await;
    let mut worker = broker.worker("index").await;
    let running = worker.next().await;
    let new = broker.enqueue(version(2)).await;
    assert_eq!(broker.state(new).await, JobState::Waiting);
    worker.nack(&running, "no").await;
    let next = worker.next().await;
    assert_eq!(next.id, new);
    let job = broker.job(old).await;
    assert_eq!(job.state(), JobState::Cancelled);
    let errors: Vec<&str> = job.failures.iter().map(|failure| &failure.error[..]).collect();
    assert_eq!(errors, ["no", &format!("superseded by job {new}")]);
    // A repeated nack succeeds, but an ack with the same lease is answered with `LEASE_LOST`.
    worker.nack(&running, "no").await;
    assert_eq!(worker.ack(&running).status().await, howdah_proto::v1::SettleStatus::LeaseLost);
    assert_eq!(broker.state(child).await, JobState::Cancelled);
    worker.ack(&next).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_key").await, 0);
}

#[tokio::test]
async fn a_newer_version_runs_when_the_worker_of_the_older_is_lost_or_its_attempt_times_out() {
    let broker = TestBroker::start_with(|c| c.session_grace = millis(100)).await;
    broker.enqueue(version(1).timeout(millis(500))).await;
    let mut worker = broker.worker("index").await;
    worker.next().await;
    let new = broker.enqueue(version(2)).await;
    worker.cancelled().await;
    let second = worker.next().await;
    assert_eq!(second.id, new);
    let newest = broker.enqueue(version(3)).await;
    let mut other = broker.worker("index").await;
    worker.vanish();
    assert_eq!(other.next().await.id, newest);
    assert_eq!(broker.state(new).await, JobState::Cancelled);
}

#[tokio::test]
async fn a_newer_version_can_wait_for_the_retries_of_the_older_version() {
    let broker = TestBroker::start().await;
    let old = broker.enqueue(version(1)).await;
    let mut worker = broker.worker("index").await;
    let running = worker.next().await;
    let waits_for_retries = version(2).with(|job| job.on_holder_failure = HolderFailure::Retry.into());
    let new = broker.enqueue(waits_for_retries).await;
    worker.nack(&running, "no").at_once().await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (old, 2));
    worker.ack(&again).await;
    assert_eq!(worker.next().await.id, new);
}

#[tokio::test]
async fn an_older_version_that_is_released_or_snoozed_has_not_failed() {
    let broker = TestBroker::start().await;
    let old = broker.enqueue(version(1)).await;
    let mut worker = broker.worker("index").await;
    let running = worker.next().await;
    let new = broker.enqueue(version(2)).await;
    worker.release(&running).await;
    let again = worker.next().await;
    assert_eq!(again.id, old);
    worker.snooze(&again, HOUR).await;
    assert_eq!((broker.state(old).await, broker.state(new).await), (JobState::Scheduled, JobState::Waiting));
}

#[tokio::test]
async fn an_older_version_that_fails_without_attempts_left_is_dead() {
    let broker = TestBroker::start().await;
    let old = broker.enqueue(version(1).max_attempts(1)).await;
    let mut worker = broker.worker("index").await;
    let running = worker.next().await;
    let new = broker.enqueue(version(2)).await;
    worker.nack(&running, "no").await;
    assert_eq!(worker.next().await.id, new);
    assert_eq!(broker.state(old).await, JobState::Dead);
}

#[tokio::test]
async fn the_sql_function_fail_reports_a_superseded_job_as_cancelled() {
    let broker = TestBroker::start().await;
    broker.enqueue(version(1)).await;
    let job = broker.pull("index").await.remove(0);
    let new = broker.enqueue(version(2)).await;
    let client = broker.database.connect().await;
    let state = client.query_one("SELECT howdah.fail($1, $2, 'no')", &[&job.id, &job.token]).await.unwrap();
    assert_eq!(state.get::<_, String>(0), "cancelled");
    assert_eq!(broker.pull("index").await[0].id, new);
}

#[tokio::test]
async fn on_holder_failure_needs_a_key_and_a_known_value() {
    let broker = TestBroker::start().await;
    let with_value = |value| new_job("t", "").with(move |job: &mut NewJob| job.on_holder_failure = value);
    broker.enqueue(with_value(1)).refused().await.names("jobs[0].on_holder_failure");
    broker.enqueue(with_value(9).key("k")).refused().await.names("jobs[0].on_holder_failure");
}
