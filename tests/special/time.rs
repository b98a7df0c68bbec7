//! Expiry: a job that has not begun in time does not begin.

use std::time::Duration;

use howdah_proto::v1::{
    JobState, NewJob, Outcome, PullJobsRequest, Release, SettleJobsRequest, Snooze,
    new_job::{Expiry, Start},
    outcome,
};
use tonic::Code;

use super::{enqueue, get, ids, until_state};
use crate::support::{TestBroker, TestDatabase, Worker, database, nack, new_job, until, workers_client};

fn expiring(task_type: &str, seconds: u64) -> NewJob {
    NewJob {
        expiry: Some(Expiry::ExpireAfter(Duration::from_secs(seconds).try_into().unwrap())),
        ..new_job(task_type, "")
    }
}

/// Moves the time by which all jobs expire to now.
const OVER: &str = "WITH a AS (UPDATE howdah.ready SET options = options || '{\"expire_us\": 1}'),
    b AS (UPDATE howdah.expiry SET expire_at = now()) SELECT true";

#[tokio::test]
async fn a_job_that_nobody_began_in_time_expires() {
    let database = database().await;
    let _broker = TestBroker::start(&database).await;
    let id = ids(&_broker, vec![expiring("late", 3600)]).await[0];
    assert!(get(&_broker, id).await.expire_time.is_some());
    until(&database, "the time", OVER).await;
    until_state(&database, id, JobState::Expired).await;
}

#[tokio::test]
async fn a_job_that_is_claimed_too_late_is_not_handed_out() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let late = ids(&broker, vec![expiring("late", 3600)]).await[0];
    let fine = ids(&broker, vec![new_job("late", "fine")]).await[0];
    // Only the job knows: the task that ends expired ones is not told.
    until(
        &database,
        "the time",
        "WITH a AS (UPDATE howdah.ready SET options = options || '{\"expire_us\": 1}'
        WHERE options IS NOT NULL) SELECT true",
    )
    .await;
    let mut worker = Worker::connect(&broker.grpc, "late", 10).await;
    assert_eq!(worker.job().await.id, fine);
    until_state(&database, late, JobState::Expired).await;
    assert_eq!(get(&broker, late).await.attempt, 0);
}

#[tokio::test]
async fn a_job_that_has_begun_does_not_expire() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let id = ids(&broker, vec![expiring("late", 3600)]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "late", 10).await;
    let job = worker.job().await;
    until(
        &database,
        "the time",
        "WITH a AS (UPDATE howdah.leased SET options = options || '{\"expire_us\": 1}'),
        b AS (UPDATE howdah.expiry SET expire_at = now()) SELECT true",
    )
    .await;
    until(&database, "the look", "SELECT NOT EXISTS (SELECT FROM howdah.expiry WHERE expire_at <= now())").await;
    worker.settle(vec![nack(&job, "once more")]).await;
    worker.settled().await;
    let again = worker.job().await;
    assert_eq!((again.id, again.attempt), (id, 2));
}

/// The time by which a leased job expires is over, and somebody has looked.
async fn over_while_it_is_leased(database: &TestDatabase) {
    let sql = "WITH a AS (UPDATE howdah.leased SET options = options || '{\"expire_us\": 1}'),
        b AS (UPDATE howdah.expiry SET expire_at = now()) SELECT true";
    until(database, "the time", sql).await;
    until(database, "the look", "SELECT NOT EXISTS (SELECT FROM howdah.expiry WHERE expire_at <= now())").await;
}

#[tokio::test]
async fn a_job_that_is_given_back_unbegun_after_its_time_expires() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let id = ids(&broker, vec![expiring("late", 3600)]).await[0];
    let child = ids(&broker, vec![NewJob { after: vec![id], ..new_job("late", "child") }]).await[0];
    // It is pulled, so nobody takes it a second time.
    let mut worker = workers_client(&broker.grpc).await;
    let lease_duration = Some(Duration::from_secs(3600).try_into().unwrap());
    let task_types = vec!["late".into()];
    let pull = PullJobsRequest { task_types, max_jobs: 1, lease_duration, ..PullJobsRequest::default() };
    let job = worker.pull_jobs(pull).await.unwrap().into_inner().jobs.remove(0);
    over_while_it_is_leased(&database).await;
    let release = Some(outcome::Outcome::Release(Release {}));
    let outcomes = vec![Outcome { id, token: job.token, outcome: release }];
    worker.settle_jobs(SettleJobsRequest { outcomes }).await.unwrap();
    until(&database, "the next look", "WITH a AS (UPDATE howdah.expiry SET expire_at = now()) SELECT true").await;
    until_state(&database, id, JobState::Expired).await;
    until_state(&database, child, JobState::Cancelled).await;
}

#[tokio::test]
async fn a_job_that_has_begun_and_is_snoozed_does_not_expire() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let id = ids(&broker, vec![expiring("late", 3600)]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "late", 1).await;
    let job = worker.job().await;
    over_while_it_is_leased(&database).await;
    let delay = Some(Duration::ZERO.try_into().unwrap());
    let snooze = outcome::Outcome::Snooze(Snooze { delay });
    worker.settle(vec![Outcome { id, token: job.token, outcome: Some(snooze) }]).await;
    worker.settled().await;
    let again = worker.job().await;
    assert_eq!((again.id, again.attempt), (id, 1));
}

#[tokio::test]
async fn an_expiry_before_the_start_is_refused() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let delay = Some(Start::Delay(Duration::from_secs(60).try_into().unwrap()));
    let error = enqueue(&broker, vec![NewJob { start: delay, ..expiring("late", 60) }]).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().starts_with("jobs[0].expire_after"), "{error}");
}
