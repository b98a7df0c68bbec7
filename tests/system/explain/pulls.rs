//! Tests explanations of jobs whose type is served by pull calls instead of streams.

use std::future::IntoFuture as _;

use howdah_proto::v1::{ReasonKind, TaskTypeSettings};

use super::{explain, kinds, reason};
use crate::support::*;

#[tokio::test]
async fn a_job_of_a_type_that_is_pulled_waits_for_the_next_pull_and_every_broker_knows() {
    let (a, b) = TestBroker::pair().await;
    assert!(a.pull("p").await.is_empty());
    let first = a.enqueue("p").await;
    let waits = reason(&a, first, ReasonKind::NextPull).await;
    assert!(waits.since.is_some() && waits.text.contains("PullJobs") && waits.text.contains("ago"), "{waits:?}");
    eventually("the pull in the explanation of the other broker", async || {
        kinds(&b, first).await == [ReasonKind::NextPull]
    })
    .await;
    let second = a.enqueue("p").await;
    assert_eq!(kinds(&b, second).await, [ReasonKind::NextPull, ReasonKind::OthersFirst]);
    // No worker has ever pulled jobs of type q.
    let other = a.enqueue("q").await;
    reason(&b, other, ReasonKind::NoWorker).await;
}

#[tokio::test]
async fn a_type_that_was_last_pulled_hours_ago_has_no_worker_and_the_reason_names_that_time() {
    let (a, b) = TestBroker::pair().await;
    a.pull("p").await;
    let id = a.enqueue("p").await;
    a.until("the stored time of the pull", "SELECT count(*) = 1 FROM howdah.pull").await;
    a.sql("UPDATE howdah.pull SET last = now() - interval '3 hours'").await;
    let nobody = reason(&b, id, ReasonKind::NoWorker).await;
    assert!(nobody.since.is_some() && nobody.text.contains("3h"), "{nobody:?}");
    assert_eq!(explain(&b, id).await.expected_in, None);
}

#[tokio::test]
async fn an_open_pull_counts_as_a_worker_of_its_type() {
    let broker = TestBroker::start().await;
    broker.set("p", TaskTypeSettings { paused: true, ..Default::default() }).await;
    let id = broker.enqueue("p").await;
    assert_eq!(kinds(&broker, id).await, [ReasonKind::TypePaused, ReasonKind::NoWorker]);
    let waiting = tokio::spawn(broker.pull("p").wait(MINUTE).into_future());
    eventually("an explanation that knows of the waiting pull", async || {
        kinds(&broker, id).await == [ReasonKind::TypePaused]
    })
    .await;
    waiting.abort();
    let gone = [ReasonKind::TypePaused, ReasonKind::NextPull];
    eventually("an explanation that knows of the end of the pull", async || kinds(&broker, id).await == gone).await;
}

#[tokio::test]
async fn a_pull_is_the_remedy_for_jobs_too_large_for_workers_or_behind_full_workers() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("p").window(1).bytes(1_000).await;
    let large = broker.enqueue(new_job("p", vec![0; 3_000])).await;
    reason(&broker, large, ReasonKind::TooLarge).await;
    broker.enqueue("p").await;
    worker.next().await;
    let small = broker.enqueue("p").await;
    let full = explain(&broker, small).await.reasons.remove(0);
    assert!(full.kind() == ReasonKind::WorkersFull && !full.remedy.contains("pull"), "{full:?}");
    let pulled = broker.pull("p").await;
    assert_eq!(pulled[0].id, large);
    let full = reason(&broker, small, ReasonKind::WorkersFull).await;
    assert!(full.remedy.contains("pull"), "{full:?}");
    broker.settle(vec![release(&pulled[0])]).await;
    reason(&broker, large, ReasonKind::NextPull).await;
}

#[tokio::test]
async fn the_time_of_the_last_pull_is_deleted_with_its_task_type() {
    let broker = TestBroker::start().await;
    broker.pull("p").await;
    broker.until("the stored time of the pull", "SELECT count(*) = 1 FROM howdah.pull").await;
    broker.sql("UPDATE howdah.task_type SET unused_since = now() - interval '1 year'").await;
    broker.sql("SELECT howdah.delete_unused_task_types('1 day', 10)").await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.pull").await, 0);
}
