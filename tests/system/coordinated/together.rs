//! Tests combinations of options: state that one option leaves behind must not delay another.

use howdah_proto::v1::{DependencyFailure, EnqueueOutcome, JobState, NewJob, TaskTypeSettings};

use crate::support::*;

fn keyed(limit_key: &str) -> NewJob {
    new_job("work", limit_key).key("k").replace().limit_key(limit_key)
}

fn expiring() -> NewJob {
    new_job("work", "").key("k").replace().expire_after(HOUR)
}

/// Moves all expiry times back by a day, and waits until the brokers have checked the jobs.
async fn expire(broker: &TestBroker) {
    broker.sql("UPDATE howdah.expiry SET expire_at = expire_at - interval '1 day'").await;
    broker.until("the check of expired jobs", "SELECT NOT EXISTS (SELECT FROM howdah.expiry)").await;
}

#[tokio::test]
async fn a_job_that_is_replaced_by_one_with_another_limit_key_leaves_its_slot_to_the_next() {
    let broker = TestBroker::start().await;
    broker.set("work", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    broker.enqueue(keyed("x")).await;
    broker.until("a ready job in the slot of x", "SELECT count(*) = 1 FROM howdah.ready").await;
    let next = broker.enqueue("work").limit_key("x").await;
    broker
        .until("the check of the limits", "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())")
        .await;
    assert_eq!(broker.job(next).await.state(), JobState::Waiting);
    broker.enqueue(keyed("y")).await;
    broker.until_state(next, JobState::Ready).await;
}

#[tokio::test]
async fn a_job_that_is_replaced_by_one_without_expiry_does_not_expire() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(expiring()).await;
    assert_eq!(broker.enqueue(keyed("")).await, id);
    expire(&broker).await;
    assert_eq!(broker.state(id).await, JobState::Ready);
}

#[tokio::test]
async fn a_job_between_two_stages_has_begun_and_does_not_expire() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(expiring().next_stages(&["next"])).await;
    let mut worker = broker.worker("work").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    expire(&broker).await;
    assert_eq!(broker.state(id).await, JobState::Ready);
}

#[tokio::test]
async fn a_job_that_is_replaced_between_two_stages_begins_with_the_first_again() {
    let broker = TestBroker::start().await;
    let staged = || keyed("").next_stages(&["next"]);
    let id = broker.enqueue(staged()).await;
    let mut worker = broker.worker("work").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(broker.enqueue(staged().payload("new")).await, id);
    let job = worker.next().await;
    assert_eq!((job.id, &job.payload[..]), (id, &b"new"[..]));
}

#[tokio::test]
async fn a_dead_job_that_is_retried_after_its_expiry_runs() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(expiring()).await;
    let mut worker = broker.worker("work").window(1).await;
    die(&mut worker).await;
    broker
        .until(
            "the changed expiry time",
            "UPDATE howdah.dead SET options = options || '{\"expire_at_us\": 1}' RETURNING true",
        )
        .await;
    assert_eq!(broker.retry(&[id]).await, [id]);
    assert_eq!(worker.next().await.id, id);
}

async fn die(worker: &mut Worker) {
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
}

#[tokio::test]
async fn a_key_is_free_when_the_job_that_was_to_run_next_with_it_is_cancelled() {
    let broker = TestBroker::start().await;
    broker.enqueue(keyed("")).await;
    let mut worker = broker.worker("work").window(1).await;
    let running = worker.next().await;
    let next = broker.enqueue(keyed("")).outcome().await;
    assert_eq!(next.outcome(), EnqueueOutcome::Next);
    broker.cancel(&[next.id]).await;
    worker.ack(&running).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_key").await, 0);
    assert_eq!(broker.enqueue(keyed("")).outcome().await.outcome(), EnqueueOutcome::New);
}

#[tokio::test]
async fn a_job_that_waits_for_a_dead_one_runs_when_that_one_is_retried_and_succeeds() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("work").await;
    let mut worker = broker.worker("work").window(1).await;
    die(&mut worker).await;
    let child = broker.enqueue("child").after(&[parent]).if_dependency_fails(DependencyFailure::Wait).await;
    assert_eq!(broker.state(child).await, JobState::Waiting);
    assert_eq!(broker.retry(&[parent]).await, [parent]);
    let job = worker.next().await;
    worker.ack(&job).await;
    broker.until_state(child, JobState::Ready).await;
}

#[tokio::test]
async fn a_job_that_is_cancelled_no_longer_waits_for_another() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("work").await;
    let child = broker.enqueue("child").after(&[parent]).await;
    broker.cancel(&[child]).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.dependency").await, 0);
    assert_eq!(broker.job(child).await.after, [parent]);
}

#[tokio::test]
async fn the_gap_of_a_limit_key_is_kept_when_its_job_ends_before_the_limits_are_checked() {
    let broker = TestBroker::start().await;
    broker.set("work", TaskTypeSettings { key_min_gap: Some(wire(HOUR)), ..Default::default() }).await;
    let mut worker = broker.worker("work").await;
    broker.enqueue_all((0..3).map(|_| new_job("work", "").limit_key("x"))).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    broker
        .until("the check of the limits", "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())")
        .await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.waiting").await, 2);
}
