//! Keys: who keeps them, and what the next one with the same key does.

use std::time::Duration;

use howdah_proto::v1::{CancelJobsRequest, EnqueueOutcome, JobState, KeyPolicy, NewJob, new_job::Start};
use tonic::Code;

use super::{enqueue, get, ids, until_state};
use crate::support::{TestBroker, Worker, database, jobs_client, new_job, until};

fn keyed(policy: KeyPolicy, payload: &str) -> NewJob {
    NewJob { key: "doc-7".into(), key_policy: policy as i32, ..new_job("index", payload) }
}

fn delayed(job: NewJob, seconds: u64) -> NewJob {
    NewJob { start: Some(Start::Delay(Duration::from_secs(seconds).try_into().unwrap())), ..job }
}

#[tokio::test]
async fn a_job_that_has_not_begun_is_replaced_where_it_is() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let first = ids(&broker, vec![new_job("index", "before"), keyed(KeyPolicy::Keep, "old")]).await;
    let told = enqueue(&broker, vec![keyed(KeyPolicy::Replace, "new")]).await.unwrap();
    assert_eq!((told[0].id, told[0].is_new, told[0].outcome()), (first[1], false, EnqueueOutcome::Replaced));
    let mut worker = Worker::connect(&broker.grpc, "index", 10).await;
    assert_eq!(worker.job().await.payload, "before");
    let job = worker.job().await;
    assert_eq!((job.id, &job.payload[..]), (first[1], &b"new"[..]));
}

#[tokio::test]
async fn a_large_payload_is_replaced_too() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let large = "x".repeat(5_000);
    let id = ids(&broker, vec![keyed(KeyPolicy::Keep, &large)]).await[0];
    enqueue(&broker, vec![keyed(KeyPolicy::Replace, &large.replace('x', "y"))]).await.unwrap();
    assert_eq!(get(&broker, id).await.payload, "y".repeat(5_000));
    enqueue(&broker, vec![keyed(KeyPolicy::Replace, "small")]).await.unwrap();
    assert_eq!(get(&broker, id).await.payload, "small");
}

#[tokio::test]
async fn a_job_that_is_replaced_while_it_runs_is_run_once_more_afterwards() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let first = ids(&a, vec![keyed(KeyPolicy::Replace, "1")]).await[0];
    let mut worker = Worker::connect(&a.grpc, "index", 10).await;
    let running = worker.job().await;
    let second = enqueue(&b, vec![keyed(KeyPolicy::Replace, "2")]).await.unwrap()[0];
    assert_eq!((second.is_new, second.outcome()), (true, EnqueueOutcome::Next));
    // Again: the one that waits is replaced, there is no third.
    let third = enqueue(&a, vec![keyed(KeyPolicy::Replace, "3")]).await.unwrap()[0];
    assert_eq!((third.id, third.outcome()), (second.id, EnqueueOutcome::Replaced));
    assert_eq!(get(&b, second.id).await.state(), JobState::Waiting);
    worker.ack(&running).await;
    let again = worker.job().await;
    assert_eq!((again.id, &again.payload[..]), (second.id, &b"3"[..]));
    worker.ack(&again).await;
    assert_eq!(get(&a, first).await.state(), JobState::Succeeded);
    assert_eq!(database.count("SELECT count(*) FROM howdah.job_key").await, 0);
}

#[tokio::test]
async fn a_successor_that_is_cancelled_leaves_the_key_to_those_who_come() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let first = ids(&broker, vec![keyed(KeyPolicy::Replace, "1")]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "index", 10).await;
    let running = worker.job().await;
    let second = ids(&broker, vec![keyed(KeyPolicy::Replace, "2")]).await[0];
    let cancel = CancelJobsRequest { ids: vec![second], ..Default::default() };
    jobs_client(&broker.grpc).await.cancel_jobs(cancel).await.unwrap();
    assert_eq!(ids(&broker, vec![keyed(KeyPolicy::Keep, "3")]).await, [first]);
    worker.ack(&running).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.job_key").await, 0);
    assert!(enqueue(&broker, vec![keyed(KeyPolicy::Reject, "4")]).await.unwrap()[0].is_new);
}

#[tokio::test]
async fn an_older_version_changes_nothing() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let version = |n, payload: &str| NewJob { key_version: Some(n), ..keyed(KeyPolicy::ReplaceIfNewer, payload) };
    let id = ids(&broker, vec![version(5, "five")]).await[0];
    let told = enqueue(&broker, vec![version(5, "again"), version(4, "four")]).await.unwrap();
    assert!(told.iter().all(|job| job.id == id && job.outcome() == EnqueueOutcome::Stale));
    assert_eq!(get(&broker, id).await.payload, "five");
    let told = enqueue(&broker, vec![version(6, "six")]).await.unwrap();
    assert_eq!(told[0].outcome(), EnqueueOutcome::Replaced);
    assert_eq!(get(&broker, id).await.payload, "six");
}

#[tokio::test]
async fn a_rejected_key_stores_nothing_of_its_request_and_of_no_other() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    ids(&broker, vec![keyed(KeyPolicy::Keep, "old")]).await;
    let error = enqueue(&broker, vec![new_job("index", "x"), keyed(KeyPolicy::Reject, "new")]).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists);
    assert!(error.message().starts_with("jobs[1].key"), "{error}");
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 1);
    let free = NewJob { key: "doc-8".into(), ..keyed(KeyPolicy::Reject, "new") };
    assert!(enqueue(&broker, vec![free]).await.unwrap()[0].is_new);
}

#[tokio::test]
async fn a_debounced_job_is_put_off_but_never_beyond_its_limit() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let debounced = |payload: &str, seconds| NewJob {
        key_debounce_limit: Some(Duration::from_secs(3600).try_into().unwrap()),
        ..delayed(keyed(KeyPolicy::Debounce, payload), seconds)
    };
    let id = ids(&broker, vec![debounced("1", 600)]).await[0];
    let first = get(&broker, id).await.run_time.unwrap();
    let told = enqueue(&broker, vec![debounced("2", 1200)]).await.unwrap();
    assert_eq!((told[0].id, told[0].outcome()), (id, EnqueueOutcome::Debounced));
    let job = get(&broker, id).await;
    assert!(job.run_time.unwrap().seconds >= first.seconds + 590 && job.payload == "2", "{job:?}");
    enqueue(&broker, vec![debounced("3", 7200)]).await.unwrap();
    let last = get(&broker, id).await;
    let limit = job.create_time.unwrap().seconds + 3600;
    assert!((limit - 1..=limit + 1).contains(&last.run_time.unwrap().seconds), "{last:?}");
}

#[tokio::test]
async fn a_key_may_be_held_for_a_time_whether_its_job_has_finished_or_not() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let held = |payload: &str| NewJob {
        key_hold: Some(Duration::from_secs(3600).try_into().unwrap()),
        ..keyed(KeyPolicy::Keep, payload)
    };
    let id = ids(&broker, vec![held("1")]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "index", 10).await;
    let job = worker.job().await;
    worker.ack(&job).await;
    until_state(&database, id, JobState::Succeeded).await;
    let told = enqueue(&broker, vec![held("2")]).await.unwrap()[0];
    assert_eq!((told.id, told.outcome()), (id, EnqueueOutcome::Kept));
    // Plain jobs with a key meet the same key.
    assert_eq!(ids(&broker, vec![keyed(KeyPolicy::Keep, "3")]).await, [id]);
    until(&database, "the end of the hold", "UPDATE howdah.job_key SET held_until = now() RETURNING true").await;
    let next = enqueue(&broker, vec![keyed(KeyPolicy::Keep, "4")]).await.unwrap()[0];
    assert!(next.is_new && next.id != id);
}

#[tokio::test]
async fn jobs_of_one_request_with_one_key_become_one() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let jobs = (0..5).map(|n| keyed(KeyPolicy::Replace, &n.to_string())).collect();
    let told = enqueue(&broker, jobs).await.unwrap();
    assert!(told.iter().all(|job| job.id == told[0].id));
    assert_eq!(told.iter().filter(|job| job.is_new).count(), 1);
    assert_eq!(get(&broker, told[0].id).await.payload, "4");
}

#[tokio::test]
async fn what_contradicts_itself_is_refused_by_its_field() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let hold = Some(Duration::from_secs(5).try_into().unwrap());
    let cases = [
        ("key_policy", NewJob { key_policy: KeyPolicy::Replace as i32, ..new_job("t", "") }),
        ("key_hold", NewJob { key_hold: hold, ..new_job("t", "") }),
        ("key_policy", keyed(KeyPolicy::Debounce, "")),
        ("key_version", keyed(KeyPolicy::ReplaceIfNewer, "")),
        ("key_debounce_limit", NewJob { key_debounce_limit: hold, ..keyed(KeyPolicy::Replace, "") }),
        ("key_policy", NewJob { key_policy: 99, ..keyed(KeyPolicy::Keep, "") }),
    ];
    for (field, job) in cases {
        let error = enqueue(&broker, vec![new_job("t", ""), job]).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with(&format!("jobs[1].{field}")), "{error}");
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, 0);
}
