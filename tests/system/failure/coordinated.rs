//! Tests that coordinated jobs (with keys, limits or dependencies) fail like other jobs.

use howdah_proto::v1::{
    DiscardJobsRequest, JobState, NewJob, RetryJobsRequest, TaskTypeSettings, retry_jobs_request::Start,
};

use super::{RETRY, of_ids, of_type, retry};
use crate::support::*;

fn limited(key: &str) -> NewJob {
    new_job("mail", key.to_owned()).limit_key("ann")
}

#[tokio::test]
async fn a_job_in_its_fallback_skips_its_stages_and_its_dependents_still_wait() {
    let (a, b) = TestBroker::pair().await;
    a.set("mail", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let parent = limited("first").key("k").local_name("parent").next_stages(&["second"]).fallback("mail.failed");
    let child = new_job("child", "").after_local(&["parent"]);
    let ids = a.enqueue_all([parent.clone(), child, limited("next")]).await;
    let mut worker = a.worker("mail").await;
    let mut fallback = b.worker("mail.failed").await;
    let mut children = b.worker("child").await;
    let job = worker.next().await;
    assert_eq!((job.id, worker.buffered()), (ids[0], 0), "the first job, and no other of its limit key");
    worker.nack(&job, "no").no_retry().await;
    assert_eq!(worker.next().await.id, ids[2], "the next job of the limit key");
    let job = fallback.next().await;
    assert_eq!((job.id, &job.payload[..]), (ids[0], &b"first"[..]));
    assert_eq!(a.state(ids[1]).await, JobState::Waiting);
    // A job in its fallback type does not hold its key, just as a dead job does not.
    let again = a.enqueue(parent.local_name("")).await;
    assert_ne!(again, ids[0]);
    fallback.ack(&job).await;
    assert_eq!(a.state(ids[0]).await, JobState::Succeeded);
    assert_eq!(children.next().await.id, ids[1]);
}

#[tokio::test]
async fn a_retried_job_waits_for_the_limit_of_its_key_like_any_other() {
    let broker = TestBroker::start().await;
    broker.set("mail", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let mut worker = broker.worker("mail").await;
    let ids = broker.enqueue_all([limited("1"), limited("2")]).await;
    let job = worker.next().await;
    worker.nack(&job, "no host 1").no_retry().await;
    let second = worker.next().await;
    assert_eq!(second.id, ids[1]);
    let filter = howdah_proto::v1::JobFilter { error_group: "no host #".into(), ..of_type("mail") };
    let answer = retry(&broker, RetryJobsRequest { filter: Some(filter), ..RETRY }).await;
    assert_eq!(answer.retried_ids, ids[..1]);
    let waits = format!("SELECT EXISTS (SELECT FROM howdah.waiting WHERE id = {})", ids[0]);
    broker.until("the retried job at its limit key", &waits).await;
    worker.ack(&second).await;
    let job = worker.next().await;
    assert_eq!((job.id, job.attempt), (ids[0], 1));
    // Retries the dead job at a time in the future, with another payload.
    worker.nack(&job, "no").no_retry().await;
    let later = at(2_000_000_000);
    let start = Some(Start::RunAt(later));
    let request = RetryJobsRequest { filter: of_ids(&ids[..1]), start, payload: Some("new".into()), ..RETRY };
    assert_eq!(retry(&broker, request).await.retried_ids, ids[..1]);
    let job = broker.job(ids[0]).await;
    assert_eq!((job.state(), job.run_time, &job.payload[..]), (JobState::Scheduled, Some(later), &b"new"[..]));
    assert_eq!(broker.retry(&ids[..1]).await, ids[..1]);
    assert_eq!(&worker.next().await.payload[..], b"new");
}

#[tokio::test]
async fn a_coordinated_dead_job_takes_its_key_again_unless_another_job_has_it() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("mail").window(1).await;
    let keyed = || limited("").key("k");
    let first = broker.enqueue(keyed()).await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    let second = broker.enqueue(keyed()).await;
    let request = || RetryJobsRequest { filter: of_ids(&[first]), ..RETRY };
    let answer = retry(&broker, request()).await;
    assert_eq!((answer.retried_ids.len(), answer.key_held_ids), (0, vec![first]));
    let job = worker.next().await;
    assert_eq!(job.id, second);
    worker.ack(&job).await;
    assert_eq!(retry(&broker, request()).await.retried_ids, [first]);
    assert_eq!(broker.enqueue(keyed()).await, first);
}

#[tokio::test]
async fn a_retried_dead_job_takes_its_key_again_after_the_key_hold_of_another_job() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("mail").window(1).await;
    let mut dead = Vec::new();
    let keyed = || new_job("mail", "").key("k");
    for keyed in [keyed(), keyed().key_hold(HOUR)] {
        dead.push(broker.enqueue(keyed).await);
        let job = worker.next().await;
        worker.nack(&job, "no").no_retry().await;
    }
    let request = |id: i64| RetryJobsRequest { filter: of_ids(&[id]), ..RETRY };
    assert_eq!(retry(&broker, request(dead[0])).await.key_held_ids, [dead[0]]);
    // The key hold has ended, but its row in `job_key` exists until a broker deletes it.
    broker.until("a held key", "UPDATE howdah.job_key SET held_until = now() RETURNING true").await;
    assert_eq!(retry(&broker, request(dead[0])).await.retried_ids, [dead[0]]);
    assert_eq!(retry(&broker, request(dead[1])).await.key_held_ids, [dead[1]]);
    let job = worker.next().await;
    assert_eq!(job.id, dead[0]);
    worker.ack(&job).await;
    // Both dead jobs have the same key. The second job can be retried now, because the first one has ended.
    assert_eq!(retry(&broker, request(dead[1])).await.retried_ids, [dead[1]]);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_key WHERE held_until IS NULL").await, 1);
}

#[tokio::test]
async fn discarding_a_dead_job_cancels_the_dependents_that_wait_for_it() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("mail").await;
    let child = new_job("child", "").after(&[parent]).if_dependency_fails(howdah_proto::v1::DependencyFailure::Wait);
    let ids = [parent, broker.enqueue(child).await];
    let mut worker = broker.worker("mail").window(1).await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    assert_eq!(broker.state(ids[1]).await, JobState::Waiting);
    let request = DiscardJobsRequest { filter: of_ids(&ids[..1]), ..Default::default() };
    let mut jobs = broker.jobs();
    assert_eq!(jobs.discard_jobs(request).await.unwrap().into_inner().discarded_ids, ids[..1]);
    assert_eq!(broker.wait(ids[1]).await.state(), JobState::Cancelled);
}

#[tokio::test]
async fn a_delayed_job_with_a_limit_key_or_a_fair_key_runs_now_when_it_is_retried() {
    let broker = TestBroker::start().await;
    let jobs = [limited("limited"), new_job("mail", "fair").fair_key("ann")].map(|job| job.delay(HOUR));
    let ids = broker.enqueue_all(jobs).await;
    assert_eq!(broker.retry(&ids).await, ids);
    let mut worker = broker.worker("mail").await;
    let mut got = [worker.next().await.id, worker.next().await.id];
    got.sort_unstable();
    assert_eq!(got[..], ids[..]);
}
