//! Options that meet: what one of them leaves behind must not hold up another.

use std::time::Duration;

use howdah_proto::v1::{
    CancelJobsRequest, DependencyFailure, EnqueueOutcome, JobFilter, JobState, KeyPolicy, Nack, NewJob, Outcome,
    RetryJobsRequest, TaskTypeSettings, UpdateTaskTypeRequest, new_job::Expiry, outcome,
};

use super::{enqueue, get, ids, until_state};
use crate::support::{TestBroker, TestDatabase, Worker, database, jobs_client, new_job, task_types_client, until};

async fn set(broker: &TestBroker, settings: TaskTypeSettings) {
    let request = UpdateTaskTypeRequest { task_type: "work".into(), settings: Some(settings) };
    task_types_client(&broker.grpc).await.update_task_type(request).await.expect("settings");
}

async fn cancel(broker: &TestBroker, id: i64) {
    let request = CancelJobsRequest { ids: vec![id], ..CancelJobsRequest::default() };
    jobs_client(&broker.grpc).await.cancel_jobs(request).await.expect("cancel");
}

fn keyed(limit_key: &str) -> NewJob {
    let policy = KeyPolicy::Replace as i32;
    NewJob { key: "k".into(), key_policy: policy, limit_key: limit_key.into(), ..new_job("work", limit_key.to_owned()) }
}

fn expiring() -> NewJob {
    let hour = Duration::from_secs(3600).try_into().unwrap();
    NewJob {
        expiry: Some(Expiry::ExpireAfter(hour)),
        key: "k".into(),
        key_policy: KeyPolicy::Replace as i32,
        ..new_job("work", "")
    }
}

/// All that was to begin within an hour had to begin yesterday.
async fn expire(database: &TestDatabase) {
    let over = "WITH a AS (UPDATE howdah.expiry SET expire_at = expire_at - interval '1 day') SELECT true";
    until(database, "the time", over).await;
    until(database, "the look", "SELECT NOT EXISTS (SELECT FROM howdah.expiry)").await;
}

#[tokio::test]
async fn a_job_that_is_replaced_by_one_with_another_limit_key_leaves_its_slot_to_the_next() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    set(&broker, TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    ids(&broker, vec![keyed("x")]).await;
    until(&database, "its slot", "SELECT count(*) = 1 FROM howdah.ready").await;
    let next = ids(&broker, vec![NewJob { limit_key: "x".into(), ..new_job("work", "") }]).await[0];
    until(&database, "the look", "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())").await;
    assert_eq!(get(&broker, next).await.state(), JobState::Waiting);
    ids(&broker, vec![keyed("y")]).await;
    until_state(&database, next, JobState::Ready).await;
}

#[tokio::test]
async fn a_job_that_is_replaced_by_one_without_expiry_does_not_expire() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let id = ids(&broker, vec![expiring()]).await[0];
    assert_eq!(ids(&broker, vec![keyed("")]).await, [id]);
    expire(&database).await;
    assert_eq!(get(&broker, id).await.state(), JobState::Ready);
}

#[tokio::test]
async fn a_job_between_two_stages_has_begun_and_does_not_expire() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let id = ids(&broker, vec![NewJob { next_stages: vec!["next".into()], ..expiring() }]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "work", 1).await;
    let job = worker.job().await;
    worker.ack(&job).await;
    expire(&database).await;
    assert_eq!(get(&broker, id).await.state(), JobState::Ready);
}

#[tokio::test]
async fn a_job_that_is_replaced_between_two_stages_begins_with_the_first_again() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let staged = || NewJob { next_stages: vec!["next".into()], ..keyed("") };
    let id = ids(&broker, vec![staged()]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "work", 1).await;
    let job = worker.job().await;
    worker.ack(&job).await;
    assert_eq!(ids(&broker, vec![NewJob { payload: "new".into(), ..staged() }]).await, [id]);
    let job = worker.job().await;
    assert_eq!((job.id, &job.payload[..]), (id, &b"new"[..]));
}

#[tokio::test]
async fn a_dead_job_that_is_retried_after_its_expiry_runs() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let id = ids(&broker, vec![expiring()]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "work", 1).await;
    die(&mut worker).await;
    until(&database, "the time", "UPDATE howdah.dead SET options = options || '{\"expire_us\": 1}' RETURNING true")
        .await;
    retry(&broker, id).await;
    assert_eq!(worker.job().await.id, id);
}

async fn die(worker: &mut Worker) {
    let job = worker.job().await;
    let nack = Nack { error: "no".into(), no_retry: true, ..Nack::default() };
    worker.settle(vec![Outcome { id: job.id, token: job.token, outcome: Some(outcome::Outcome::Nack(nack)) }]).await;
    worker.settled().await;
}

async fn retry(broker: &TestBroker, id: i64) {
    let filter = Some(JobFilter { ids: vec![id], ..JobFilter::default() });
    let request = RetryJobsRequest { filter, ..RetryJobsRequest::default() };
    jobs_client(&broker.grpc).await.retry_jobs(request).await.expect("retry");
}

#[tokio::test]
async fn a_key_is_free_when_the_job_that_was_to_run_next_with_it_is_cancelled() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    ids(&broker, vec![keyed("")]).await;
    let mut worker = Worker::connect(&broker.grpc, "work", 1).await;
    let running = worker.job().await;
    let next = enqueue(&broker, vec![keyed("")]).await.unwrap()[0];
    assert_eq!(next.outcome(), EnqueueOutcome::Next);
    cancel(&broker, next.id).await;
    worker.ack(&running).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.job_key").await, 0);
    assert_eq!(enqueue(&broker, vec![keyed("")]).await.unwrap()[0].outcome(), EnqueueOutcome::New);
}

#[tokio::test]
async fn a_job_that_waits_for_a_dead_one_runs_when_that_one_is_retried_and_succeeds() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let parent = ids(&broker, vec![new_job("work", "")]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "work", 1).await;
    die(&mut worker).await;
    let policy = DependencyFailure::Wait as i32;
    let child = NewJob { after: vec![parent], on_dependency_failure: policy, ..new_job("child", "") };
    let child = ids(&broker, vec![child]).await[0];
    assert_eq!(get(&broker, child).await.state(), JobState::Waiting);
    retry(&broker, parent).await;
    let job = worker.job().await;
    worker.ack(&job).await;
    until_state(&database, child, JobState::Ready).await;
}

#[tokio::test]
async fn a_job_that_is_cancelled_no_longer_waits_for_another() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let parent = ids(&broker, vec![new_job("work", "")]).await[0];
    let child = ids(&broker, vec![NewJob { after: vec![parent], ..new_job("child", "") }]).await[0];
    cancel(&broker, child).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.dependency").await, 0);
    assert!(get(&broker, child).await.after.is_empty());
}

#[tokio::test]
async fn the_gap_of_a_key_is_kept_when_its_job_ends_before_anybody_looks() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let gap = Some(Duration::from_secs(3600).try_into().unwrap());
    set(&broker, TaskTypeSettings { key_min_gap: gap, ..Default::default() }).await;
    let mut worker = Worker::connect(&broker.grpc, "work", 10).await;
    let jobs = (0..3).map(|_| NewJob { limit_key: "x".into(), ..new_job("work", "") });
    ids(&broker, jobs.collect()).await;
    let job = worker.job().await;
    worker.ack(&job).await;
    until(&database, "the look", "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())").await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.waiting").await, 2);
}
