//! Tests that a key remembers the version of its last job that succeeded.

use howdah_proto::v1::{EnqueueOutcome, JobState, KeyPolicy, NewJob, TaskTypeSettings};

use crate::support::*;

fn version(version: i64) -> NewJob {
    new_job("doc", "").key("k").with(|job: &mut NewJob| {
        job.key_policy = KeyPolicy::ReplaceIfNewer as i32;
        job.key_version = Some(version);
    })
}

async fn enqueue(broker: &Service, job: NewJob) -> (i64, EnqueueOutcome) {
    let enqueued = broker.enqueue(job).outcome().await;
    (enqueued.id, enqueued.outcome())
}

async fn outcome(broker: &Service, job: NewJob) -> EnqueueOutcome {
    enqueue(broker, job).await.1
}

async fn run(worker: &mut Worker) {
    let job = worker.next().await;
    worker.ack(&job).await;
}

#[tokio::test]
async fn an_older_or_equal_version_is_stale_after_the_newer_job_has_succeeded_also_after_a_restart() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut worker = broker.worker("doc").await;
    let (id, _) = enqueue(&broker, version(5)).await;
    run(&mut worker).await;
    broker.until_state(id, JobState::Succeeded).await;
    for old in [4, 5] {
        assert_eq!(enqueue(&broker, version(old)).await, (id, EnqueueOutcome::Stale));
    }
    worker.vanish();
    broker.stop().await;
    let broker = TestBroker::on(&database).await;
    assert_eq!(enqueue(&broker, version(5)).await, (id, EnqueueOutcome::Stale));
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_key").await, 0, "a stale job holds no key");
    let mut worker = broker.worker("doc").await;
    assert_eq!(outcome(&broker, version(6)).await, EnqueueOutcome::New);
    let job = worker.next().await;
    broker.sql(&format!("SELECT howdah.complete({}, {})", job.id, job.token)).await;
    assert_eq!(outcome(&broker, version(6)).await, EnqueueOutcome::Stale);
    // Within one request, the later of two new versions replaces the former.
    let enqueued = broker.enqueue_all([version(6), version(7), version(8)]).outcomes().await;
    let outcomes: Vec<_> = enqueued.iter().map(|job| job.outcome()).collect();
    assert_eq!(outcomes, [EnqueueOutcome::Stale, EnqueueOutcome::New, EnqueueOutcome::Replaced]);
}

#[tokio::test]
async fn only_the_version_of_a_job_that_succeeded_is_remembered() {
    let broker = TestBroker::start().await;
    let (id, _) = enqueue(&broker, version(9)).await;
    broker.cancel(&[id]).await;
    assert_eq!(outcome(&broker, version(9)).await, EnqueueOutcome::New);
    let mut worker = broker.worker("doc").await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    broker.until_state(job.id, JobState::Dead).await;
    // The successor of a running job is cancelled: the version of the job that ran counts.
    assert_eq!(outcome(&broker, version(3)).await, EnqueueOutcome::New);
    let running = worker.next().await;
    let (next, of_next) = enqueue(&broker, version(9)).await;
    assert_eq!(of_next, EnqueueOutcome::Next);
    broker.cancel(&[next]).await;
    worker.ack(&running).await;
    broker.until_state(running.id, JobState::Succeeded).await;
    assert_eq!(outcome(&broker, version(3)).await, EnqueueOutcome::Stale);
    assert_eq!(outcome(&broker, version(9)).await, EnqueueOutcome::New);
}

#[tokio::test]
async fn other_policies_and_keys_without_a_version_are_as_before() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("doc").window(10).await;
    let plain = || new_job("doc", "").key("k");
    outcome(&broker, version(5)).await;
    run(&mut worker).await;
    for policy in [KeyPolicy::Keep, KeyPolicy::Replace, KeyPolicy::Reject] {
        let job = plain().with(|job: &mut NewJob| job.key_policy = policy as i32);
        assert_eq!(outcome(&broker, job).await, EnqueueOutcome::New);
        run(&mut worker).await;
        broker.until("a free key", "SELECT NOT EXISTS (SELECT FROM howdah.job_key)").await;
    }
    assert_eq!(outcome(&broker, version(5)).await, EnqueueOutcome::Stale);
    // While a job without a version holds the key, the version of the last job that had one still counts.
    outcome(&broker, plain().delay(HOUR)).await;
    assert_eq!(outcome(&broker, version(4)).await, EnqueueOutcome::Stale);
    assert_eq!(outcome(&broker, version(6)).await, EnqueueOutcome::Replaced);
    run(&mut worker).await;
    let held = version(1).with(|job: &mut NewJob| {
        job.key = "held".into();
        job.key_hold = Some(wire(HOUR));
    });
    outcome(&broker, held.clone()).await;
    run(&mut worker).await;
    broker.until("the version", "SELECT EXISTS (SELECT FROM howdah.key_version WHERE key = 'held')").await;
    broker.sql("UPDATE howdah.job_key SET held_until = now() - interval '1 s' WHERE key = 'held'").await;
    assert_eq!(outcome(&broker, held).await, EnqueueOutcome::Stale);
}

#[tokio::test]
async fn a_version_is_forgotten_with_the_history_of_its_type() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    broker.set("doc", TaskTypeSettings { history_days: 3, ..Default::default() }).await;
    let mut worker = broker.worker("doc").await;
    outcome(&broker, version(5)).await;
    run(&mut worker).await;
    let (other, of_other) = enqueue(&broker, version(1).with(|job: &mut NewJob| job.key = "other".into())).await;
    assert_eq!(of_other, EnqueueOutcome::New);
    run(&mut worker).await;
    broker.until_state(other, JobState::Succeeded).await;
    worker.vanish();
    broker.stop().await;
    let age = "UPDATE howdah.key_version SET ended = ended - interval '4 days' WHERE key = 'k';
               UPDATE howdah.key_version SET ended = ended - interval '2 days' WHERE key = 'other'";
    database.sql(age).await;
    // A broker runs retention when it starts.
    let broker = TestBroker::on(&database).await;
    broker.until("one version", "SELECT array_agg(key) = '{other}' FROM howdah.key_version").await;
    assert_eq!(outcome(&broker, version(1)).await, EnqueueOutcome::New);
}
