//! Tests that retrying a dead job restores the dependent jobs that its death cancelled.

use howdah_proto::v1::{JobFilter, JobState, NewJob, RetryJobsRequest};

use crate::support::*;

async fn dies(broker: &TestBroker, task_type: &str) {
    let mut worker = broker.worker(task_type).window(1).await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
}

async fn retried(broker: &TestBroker, ids: &[i64]) -> Vec<i64> {
    let filter = Some(JobFilter { ids: ids.to_vec(), ..Default::default() });
    let request = RetryJobsRequest { filter, ..Default::default() };
    let mut revived = broker.jobs().retry_jobs(request).await.unwrap().into_inner().revived_ids;
    revived.sort_unstable();
    revived
}

fn after(task_type: &str, parents: &[i64]) -> NewJob {
    new_job(task_type, task_type).after(parents)
}

#[tokio::test]
async fn direct_and_indirect_dependents_of_a_retried_dead_job_are_revived_and_run() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("parent").await;
    let child = broker.enqueue(after("child", &[parent]).timeout(HOUR).key("k").priority(3)).await;
    let grandchild = broker.enqueue(after("grandchild", &[child])).await;
    dies(&broker, "parent").await;
    assert_eq!(broker.state(grandchild).await, JobState::Cancelled);
    // The job `late` depends on the dead parent, so the retry revives it. The job `never` was enqueued after its dependency had
    // been cancelled, so it stays cancelled.
    let late = broker.enqueue(after("late", &[parent])).await;
    let never = broker.enqueue(after("never", &[child])).await;
    assert_eq!(retried(&broker, &[parent]).await, [child, grandchild, late]);
    assert_eq!(broker.state(never).await, JobState::Cancelled);
    let job = broker.job(child).await;
    assert_eq!((job.state(), job.after, job.priority), (JobState::Waiting, vec![parent], 3));
    assert_eq!(broker.enqueue(new_job("child", "").key("k")).await, child, "the revived job does not hold its key");
    let mut parents = broker.worker("parent").await;
    let job = parents.next().await;
    parents.ack(&job).await;
    let mut children = broker.worker("child").await;
    let job = children.next().await;
    assert_eq!((job.id, &job.payload[..]), (child, &b"child"[..]));
    assert!(job.deadline.is_some(), "the revived job has no timeout");
    children.ack(&job).await;
    assert_eq!(broker.worker("grandchild").await.next().await.id, grandchild);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.dependency").await, 0);
}

#[tokio::test]
async fn a_dependent_of_two_dead_jobs_is_revived_when_the_second_one_is_retried() {
    let broker = TestBroker::start().await;
    let (a, b) = (broker.enqueue("a").await, broker.enqueue("b").await);
    let child = broker.enqueue(after("child", &[a, b])).await;
    dies(&broker, "a").await;
    dies(&broker, "b").await;
    assert_eq!(retried(&broker, &[a]).await, [] as [i64; 0]);
    assert_eq!(retried(&broker, &[b]).await, [child]);
    // The SQL function `retry_now` restores the cancelled child too.
    dies(&broker, "a").await;
    assert_eq!(broker.state(child).await, JobState::Cancelled);
    broker.sql(&format!("SELECT howdah.retry_now({a})")).await;
    assert_eq!(broker.state(child).await, JobState::Waiting);
}

#[tokio::test]
async fn a_dependent_with_a_cancelled_dependency_or_a_lost_key_stays_cancelled() {
    let broker = TestBroker::start().await;
    let (a, b) = (broker.enqueue("a").await, broker.enqueue(new_job("b", "").delay(HOUR)).await);
    let child = broker.enqueue(after("child", &[a, b])).await;
    let grandchild = broker.enqueue(after("grandchild", &[child])).await;
    let keyed = broker.enqueue(after("keyed", &[a]).key("k")).await;
    dies(&broker, "a").await;
    broker.cancel(&[b]).await;
    let other = broker.enqueue(new_job("keyed", "").key("k")).await;
    assert_eq!(retried(&broker, &[a]).await, [] as [i64; 0]);
    for id in [child, grandchild, keyed] {
        assert_eq!(broker.state(id).await, JobState::Cancelled);
    }
    assert_eq!(broker.state(other).await, JobState::Ready);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.dependency").await, 0);
}
