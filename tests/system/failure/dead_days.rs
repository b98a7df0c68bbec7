//! Tests the discard of dead jobs after `dead_days` of their type or of the cluster.

use howdah_proto::v1::{ClusterSettings, DependencyFailure, JobState, TaskTypeSettings};

use crate::support::*;

#[tokio::test]
async fn dead_jobs_are_discarded_after_the_days_of_their_type_or_else_of_the_cluster() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    broker.set("own", TaskTypeSettings { dead_days: 3, ..Default::default() }).await;
    broker.set_cluster(ClusterSettings { dead_days: 10, ..Default::default() }).await;
    let mut worker = broker.worker("own").and("cluster").window(10).await;
    let ids = broker.enqueue_all(["own", "own", "cluster", "cluster"]).await;
    let waits = new_job("next", "").after(&ids[..1]).if_dependency_fails(DependencyFailure::Wait);
    let next = broker.enqueue(waits).await;
    for job in worker.take(4).await {
        worker.nack(&job, "no").no_retry().await;
    }
    broker.until("four dead jobs", "SELECT count(*) = 4 FROM howdah.dead").await;
    broker.stop().await;
    for (id, days) in [(ids[0], 4), (ids[2], 4), (ids[3], 11)] {
        database.sql(&format!("UPDATE howdah.dead SET died = died - interval '{days} days' WHERE id = {id}")).await;
    }
    // A broker runs retention when it starts.
    let broker = TestBroker::on(&database).await;
    broker.until("two discarded jobs", "SELECT count(*) = 2 FROM howdah.history WHERE outcome = 'discarded'").await;
    for (id, state) in [(ids[0], JobState::Discarded), (ids[3], JobState::Discarded)] {
        assert_eq!(broker.state(id).await, state);
    }
    for id in [ids[1], ids[2]] {
        assert_eq!(broker.state(id).await, JobState::Dead);
    }
    // The discard ends the job for its dependents, as a discard by an operator does.
    assert_eq!(broker.state(next).await, JobState::Cancelled);
    let audited =
        "SELECT count(*) FROM howdah.audit WHERE method = 'dead_days' AND principal = 'maintenance' AND count = 1
                     AND (types, ids, reason) IN (%)";
    let rows = [("own", ids[0], 3), ("cluster", ids[3], 10)]
        .map(|(name, id, days)| format!("(ARRAY['{name}'], ARRAY['{id}'], 'dead for more than {days} days')"));
    assert_eq!(broker.count(&audited.replace('%', &rows.join(", "))).await, 2);
}

#[tokio::test]
async fn without_dead_days_dead_jobs_are_kept() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let ids = broker.enqueue_all(["kept", "limited"]).await;
    let mut worker = broker.worker("kept").and("limited").window(10).await;
    for job in worker.take(2).await {
        worker.nack(&job, "no").no_retry().await;
    }
    broker.set("limited", TaskTypeSettings { dead_days: 3_650, ..Default::default() }).await;
    broker.stop().await;
    database.sql("UPDATE howdah.dead SET died = died - interval '3651 days'").await;
    let broker = TestBroker::on(&database).await;
    broker.until_state(ids[1], JobState::Discarded).await;
    assert_eq!(broker.state(ids[0]).await, JobState::Dead);
}
