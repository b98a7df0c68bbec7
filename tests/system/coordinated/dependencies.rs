//! Tests dependencies: a job runs after other jobs.

use howdah_proto::v1::{CancelJobsRequest, DependencyFailure, JobState, NewJob};

use crate::support::*;

fn after(parents: &[i64], policy: DependencyFailure) -> NewJob {
    NewJob { after: parents.to_vec(), ..new_job("child", "").if_dependency_fails(policy) }
}

fn local(name: &str, after: &[&str]) -> NewJob {
    let after_local = after.iter().map(|name| (*name).to_owned()).collect();
    NewJob { after_local, ..new_job("step", name.to_owned()).local_name(name) }
}

async fn dependencies(database: &TestDatabase) -> i64 {
    database.count("SELECT count(*) FROM howdah.dependency").await
}

#[tokio::test]
async fn a_dependent_with_the_policy_run_is_ready_when_a_cancel_cascades_to_its_dependency() {
    let broker = TestBroker::start().await;
    for policy in [DependencyFailure::Cancel, DependencyFailure::Wait] {
        let first = broker.enqueue(new_job("t", "")).await;
        let second = broker.enqueue(after(&[first], policy)).await;
        let third = broker.enqueue(after(&[second], DependencyFailure::Run)).await;
        assert_eq!(broker.cancel(&[first]).await, [first]);
        assert_eq!(broker.state(second).await, JobState::Cancelled, "{policy:?}");
        assert_eq!(broker.state(third).await, JobState::Ready, "{policy:?}");
    }
}

#[tokio::test]
async fn a_job_runs_after_those_it_names_have_succeeded() {
    let (a, b) = TestBroker::pair().await;
    let parents = a.enqueue_all([new_job("parent", "1"), new_job("parent", "2")]).await;
    let child = b.enqueue(after(&parents, DependencyFailure::Cancel)).await;
    let job = b.job(child).await;
    assert_eq!((job.state(), job.after), (JobState::Waiting, parents.clone()));
    let mut worker = a.worker("parent").await;
    let mut children = b.worker("child").await;
    let (first, second) = (worker.next().await, worker.next().await);
    worker.ack(&first).await;
    assert_eq!(b.state(child).await, JobState::Waiting);
    worker.ack(&second).await;
    assert_eq!(children.next().await.id, child);
    assert_eq!(dependencies(&a.database).await, 0);
}

#[tokio::test]
async fn a_job_after_one_that_has_succeeded_runs_at_once() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("parent").await;
    let mut worker = broker.worker("parent").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    let child = broker.enqueue(after(&[parent], DependencyFailure::Cancel)).await;
    assert_eq!(broker.state(child).await, JobState::Ready);
}

#[tokio::test]
async fn dependents_of_a_dead_job_are_cancelled_run_or_wait_according_to_their_policy() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("parent").await;
    let policies = [DependencyFailure::Cancel, DependencyFailure::Run, DependencyFailure::Wait];
    let children = broker.enqueue_all(policies.iter().map(|policy| after(&[parent], *policy))).await;
    // The grandchild depends on the first child, which is cancelled when the parent dies.
    let grandchild = broker.enqueue(after(&children[..1], DependencyFailure::Cancel)).await;
    let mut worker = broker.worker("parent").window(1).await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    let states = [JobState::Cancelled, JobState::Ready, JobState::Waiting];
    for (child, state) in children.iter().zip(states) {
        assert_eq!(broker.state(*child).await, state);
    }
    assert_eq!(broker.state(grandchild).await, JobState::Cancelled);
    // A job that was cancelled because of its dependency has an error that says so.
    assert!(broker.job(grandchild).await.failures[0].error.contains("did not succeed"));
    // The third child waits for a retry of the dead parent. Cancelling the parent also cancels this child.
    broker.jobs().cancel_jobs(CancelJobsRequest { ids: vec![parent], ..Default::default() }).await.unwrap();
    assert_eq!(broker.state(children[2]).await, JobState::Cancelled);
    assert_eq!(dependencies(&broker.database).await, 0);
}

#[tokio::test]
async fn a_cancelled_dependent_waits_again_when_its_dead_dependency_is_retried() {
    let broker = TestBroker::start().await;
    let parents = broker.enqueue_all([new_job("dies", ""), new_job("succeeds", "")]).await;
    for (task_type, outcome) in [("dies", JobState::Dead), ("succeeds", JobState::Succeeded)] {
        let mut worker = broker.worker(task_type).window(1).await;
        let job = worker.next().await;
        match outcome {
            JobState::Dead => worker.nack(&job, "no").no_retry().await,
            _ => worker.ack(&job).await,
        }
    }
    let child = broker.enqueue(after(&parents, DependencyFailure::Cancel)).await;
    assert_eq!(broker.state(child).await, JobState::Cancelled);
    broker.retry(&parents[..1]).await;
    assert_eq!(broker.state(child).await, JobState::Waiting);
    let mut worker = broker.worker("dies").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(broker.state(child).await, JobState::Ready);
}

#[tokio::test]
async fn jobs_of_one_request_depend_on_each_other_by_local_names() {
    let broker = TestBroker::start().await;
    let jobs = vec![local("c", &["a", "b"]), local("a", &[]), local("b", &["a"])];
    broker.enqueue_all(jobs).await;
    let mut worker = broker.worker("step").await;
    let mut order = Vec::new();
    for _ in 0..3 {
        let job = worker.next().await;
        order.push(job.payload.clone());
        assert_eq!(worker.buffered(), 0);
        worker.ack(&job).await;
    }
    assert_eq!(order, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_cycle_an_unknown_name_and_an_unknown_job_are_refused() {
    let broker = TestBroker::start().await;
    let cases = [
        ("jobs[0].after_local", vec![local("a", &["b"]), local("b", &["a"])]),
        ("jobs[0].after_local", vec![local("a", &["a"])]),
        ("jobs[1].after_local[0]", vec![local("a", &[]), local("b", &["c"])]),
        ("jobs[1].local_name", vec![local("a", &[]), local("a", &[])]),
        ("jobs[1].after", vec![new_job("t", ""), after(&[1_000_000], DependencyFailure::Cancel)]),
        ("jobs[0].after[0]", vec![after(&[-1], DependencyFailure::Cancel)]),
        ("jobs[0].on_dependency_failure", vec![after(&[], DependencyFailure::Run)]),
    ];
    for (field, jobs) in cases {
        let error = broker.enqueue_all(jobs).refused().await;
        error.names(field);
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
}

#[tokio::test]
async fn ten_thousand_children_of_one_job_and_a_chain_of_ten_thousand_run_or_are_cancelled() {
    // One statement stores ten thousand jobs, which may exceed the default timeout on a slow machine.
    let broker = TestBroker::start_with(|config| config.database_timeout = PATIENCE).await;
    let mut family = vec![local("parent", &[])];
    family.extend((1..10_000).map(|n| local(&n.to_string(), &["parent"])));
    broker.enqueue_all(family).await;
    let mut chain = vec![NewJob { task_type: "link".into(), ..local("0", &[]) }];
    chain.extend((1..10_000).map(|n| {
        let before = (n - 1).to_string();
        NewJob { task_type: "link".into(), ..local(&n.to_string(), &[&before]) }
    }));
    let links = broker.enqueue_all(chain).await;
    let mut worker = broker.worker("step").window(20_000).await;
    let parent = worker.next().await;
    assert_eq!(worker.buffered(), 0);
    worker.ack(&parent).await;
    for _ in 1..10_000 {
        worker.next().await;
    }
    // Cancelling the first job of the chain cancels all later jobs.
    broker.cancel(&[links[0]]).await;
    broker.until_state(links[9_999], JobState::Cancelled).await;
    assert_eq!(dependencies(&broker.database).await, 0);
}

#[tokio::test]
async fn a_dependent_runs_when_both_of_its_dependencies_end_at_the_same_time() {
    let (a, b) = TestBroker::pair().await;
    let mut left = a.worker("left").window(100).await;
    let mut right = b.worker("right").window(100).await;
    let mut children = a.worker("child").window(100).await;
    for _ in 0..30 {
        let parents = a.enqueue_all([new_job("left", ""), new_job("right", "")]).await;
        let (l, r) = (left.next().await, right.next().await);
        let child = b.enqueue(after(&parents, DependencyFailure::Cancel)).await;
        tokio::join!(left.settle(vec![ack(&l)]), right.settle(vec![ack(&r)]));
        let job = children.next().await;
        assert_eq!(job.id, child);
        children.ack(&job).await;
        left.settled().await;
        right.settled().await;
    }
}
