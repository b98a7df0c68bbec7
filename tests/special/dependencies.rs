//! Dependencies: a job runs after others.

use howdah_proto::v1::{CancelJobsRequest, DependencyFailure, JobState, Nack, NewJob, Outcome, outcome};
use tonic::Code;

use super::{enqueue, get, ids, until_state};
use crate::support::{PATIENCE, TestBroker, TestDatabase, Worker, ack, database, jobs_client, new_job};

fn after(parents: &[i64], policy: DependencyFailure) -> NewJob {
    NewJob { after: parents.to_vec(), on_dependency_failure: policy as i32, ..new_job("child", "") }
}

fn local(name: &str, after: &[&str]) -> NewJob {
    let after_local = after.iter().map(|name| (*name).to_owned()).collect();
    NewJob { local_name: name.into(), after_local, ..new_job("step", name.to_owned()) }
}

async fn dependencies(database: &TestDatabase) -> i64 {
    database.count("SELECT count(*) FROM howdah.dependency").await
}

#[tokio::test]
async fn a_job_runs_after_those_it_names_have_succeeded() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let parents = ids(&a, vec![new_job("parent", "1"), new_job("parent", "2")]).await;
    let child = ids(&b, vec![after(&parents, DependencyFailure::Cancel)]).await[0];
    let job = get(&b, child).await;
    assert_eq!((job.state(), job.after), (JobState::Waiting, parents.clone()));
    let mut worker = Worker::connect(&a.grpc, "parent", 10).await;
    let mut children = Worker::connect(&b.grpc, "child", 10).await;
    let (first, second) = (worker.job().await, worker.job().await);
    worker.ack(&first).await;
    assert_eq!(get(&b, child).await.state(), JobState::Waiting);
    worker.ack(&second).await;
    assert_eq!(children.job().await.id, child);
    assert_eq!(dependencies(&database).await, 0);
}

#[tokio::test]
async fn a_job_after_one_that_has_succeeded_runs_at_once() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let parent = ids(&broker, vec![new_job("parent", "")]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "parent", 1).await;
    let job = worker.job().await;
    worker.ack(&job).await;
    let child = ids(&broker, vec![after(&[parent], DependencyFailure::Cancel)]).await[0];
    assert_eq!(get(&broker, child).await.state(), JobState::Ready);
}

#[tokio::test]
async fn when_one_dies_those_behind_it_are_cancelled_run_or_wait_as_they_ask() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let parent = ids(&broker, vec![new_job("parent", "")]).await[0];
    let policies = [DependencyFailure::Cancel, DependencyFailure::Run, DependencyFailure::Wait];
    let children = ids(&broker, policies.iter().map(|policy| after(&[parent], *policy)).collect()).await;
    // And one behind the one that will be cancelled.
    let grandchild = ids(&broker, vec![after(&children[..1], DependencyFailure::Cancel)]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "parent", 1).await;
    let job = worker.job().await;
    let nack = Nack { error: "no".into(), no_retry: true, ..Nack::default() };
    worker.settle(vec![Outcome { id: job.id, token: job.token, outcome: Some(outcome::Outcome::Nack(nack)) }]).await;
    worker.settled().await;
    let states = [JobState::Cancelled, JobState::Ready, JobState::Waiting];
    for (child, state) in children.iter().zip(states) {
        assert_eq!(get(&broker, *child).await.state(), state);
    }
    assert_eq!(get(&broker, grandchild).await.state(), JobState::Cancelled);
    // What is cancelled says why.
    assert!(get(&broker, grandchild).await.failures[0].error.contains("did not succeed"));
    // The dead one is given up: who waited for it is cancelled.
    jobs_client(&broker.grpc)
        .await
        .cancel_jobs(CancelJobsRequest { ids: vec![parent], ..Default::default() })
        .await
        .unwrap();
    assert_eq!(get(&broker, children[2]).await.state(), JobState::Cancelled);
    assert_eq!(dependencies(&database).await, 0);
}

#[tokio::test]
async fn jobs_of_one_request_name_each_other() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let jobs = vec![local("c", &["a", "b"]), local("a", &[]), local("b", &["a"])];
    ids(&broker, jobs).await;
    let mut worker = Worker::connect(&broker.grpc, "step", 10).await;
    let mut order = Vec::new();
    for _ in 0..3 {
        let job = worker.job().await;
        order.push(job.payload.clone());
        assert_eq!(worker.buffered(), 0);
        worker.ack(&job).await;
    }
    assert_eq!(order, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_cycle_an_unknown_name_and_an_unknown_job_are_refused() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
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
        let error = enqueue(&broker, jobs).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().starts_with(&format!("{field} ")), "{field}: {error}");
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, 0);
}

#[tokio::test]
async fn ten_thousand_children_of_one_job_and_a_chain_of_ten_thousand_are_nothing_special() {
    let database = database().await;
    // Of one statement, on a slow machine, too.
    let broker = TestBroker::start_with(&database, |config| config.database_timeout = PATIENCE).await;
    let mut family = vec![local("parent", &[])];
    family.extend((1..10_000).map(|n| local(&n.to_string(), &["parent"])));
    ids(&broker, family).await;
    let mut chain = vec![NewJob { task_type: "link".into(), ..local("0", &[]) }];
    chain.extend((1..10_000).map(|n| {
        let before = (n - 1).to_string();
        NewJob { task_type: "link".into(), ..local(&n.to_string(), &[&before]) }
    }));
    let links = ids(&broker, chain).await;
    let mut worker = Worker::connect(&broker.grpc, "step", 20_000).await;
    let parent = worker.job().await;
    assert_eq!(worker.buffered(), 0);
    worker.ack(&parent).await;
    for _ in 1..10_000 {
        worker.job().await;
    }
    // The first of the chain is cancelled, and all behind it.
    let cancel = CancelJobsRequest { ids: vec![links[0]], ..Default::default() };
    jobs_client(&broker.grpc).await.cancel_jobs(cancel).await.unwrap();
    until_state(&database, links[9_999], JobState::Cancelled).await;
    assert_eq!(dependencies(&database).await, 0);
}

#[tokio::test]
async fn two_that_end_at_once_do_not_leave_their_child_behind() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut left = Worker::connect(&a.grpc, "left", 100).await;
    let mut right = Worker::connect(&b.grpc, "right", 100).await;
    let mut children = Worker::connect(&a.grpc, "child", 100).await;
    for _ in 0..30 {
        let parents = ids(&a, vec![new_job("left", ""), new_job("right", "")]).await;
        let (l, r) = (left.job().await, right.job().await);
        let child = ids(&b, vec![after(&parents, DependencyFailure::Cancel)]).await[0];
        tokio::join!(left.settle(vec![ack(&l)]), right.settle(vec![ack(&r)]));
        let job = children.job().await;
        assert_eq!(job.id, child);
        children.ack(&job).await;
        left.settled().await;
        right.settled().await;
    }
}
