//! Tests claims and sessions while rows that they need are locked.

use howdah_core::config::Config;
use howdah_proto::v1::{CancelReason, TaskTypeSettings};

use super::Open;
use crate::support::*;

#[tokio::test]
async fn a_locked_limit_of_a_type_holds_up_no_other_type() {
    let broker = TestBroker::start().await;
    for task_type in ["limited", "other"] {
        broker.set(task_type, TaskTypeSettings { max_running: 5, ..TaskTypeSettings::default() }).await;
    }
    let of_limited = "SELECT id FROM howdah.task_type WHERE name = 'limited'";
    let inserted = format!("INSERT INTO howdah.limit_state (type_id, limit_key) VALUES (({of_limited}), '')");
    let locked = format!("SELECT FROM howdah.limit_state WHERE type_id = ({of_limited}) FOR UPDATE");
    // The open transaction inserts the row of the limit, so a claim that inserts the same row waits.
    let open = Open::after(&broker.database, "psql", &inserted).await;
    let mut worker = broker.worker("limited").window(5).and("other").and("free").await;
    others_go_on(&broker, &mut worker, open).await;
    let open = Open::after(&broker.database, "psql", &locked).await;
    others_go_on(&broker, &mut worker, open).await;
}

/// Asserts that jobs of the locked type wait while the transaction is open, and that jobs of other types run. After the
/// commit, the waiting job must run.
async fn others_go_on(broker: &TestBroker, worker: &mut Worker, open: Open) {
    let held_up = broker.enqueue("limited").await;
    for _ in 0..10 {
        for task_type in ["other", "free"] {
            broker.enqueue(task_type).await;
            let job = worker.next().await;
            assert_eq!(job.task_type, task_type);
            worker.ack(&job).await;
        }
    }
    open.commit().await;
    let job = worker.next().await;
    assert_eq!(job.id, held_up);
    worker.ack(&job).await;
}

/// Sets a grace time and a broker lease that do not expire during a test.
fn without_expiry(config: &mut Config) {
    (config.session_grace, config.broker_lease) = (HOUR, HOUR);
}

#[tokio::test]
async fn a_worker_resumes_at_another_broker_though_one_of_its_leases_is_locked() {
    let (a, b) = TestBroker::pair_with(without_expiry).await;
    let mut worker = a.worker("t").window(2).await;
    a.enqueue_all(["t"; 2]).await;
    let jobs = worker.take(2).await;
    let sql = format!("SELECT FROM howdah.leased WHERE id = {} FOR UPDATE", jobs[0].id);
    let open = Open::after(&a.database, "psql", &sql).await;
    let back = b.worker("t").window(3).resumes(&worker.welcome.session_id, &[&jobs[0], &jobs[1]]);
    worker.vanish();
    let mut worker = back.await;
    assert_eq!((worker.welcome.kept.len(), worker.welcome.lost.len()), (2, 0));
    b.enqueue("t").await;
    let third = worker.next().await;
    worker.ack(&jobs[1]).await;
    // Waits until the second broker's adoption of the lease waits for the lock, ahead of the first broker.
    b.database.until_blocked().await;
    open.roll_back().await;
    b.until("the adoption", "SELECT count(DISTINCT broker_id) = 1 FROM howdah.leased").await;
    // When it stops, the first broker must release nothing, because the second broker holds the lease.
    a.stop().await;
    worker.ack(&jobs[0]).await;
    worker.ack(&third).await;
}

#[tokio::test]
async fn a_worker_that_resumed_with_a_locked_lease_is_told_if_that_was_ended() {
    let (a, b) = TestBroker::pair_with(without_expiry).await;
    let mut worker = a.worker("t").window(2).await;
    a.enqueue_all(["t"; 2]).await;
    let jobs = worker.take(2).await;
    let sql = format!("SELECT howdah.cancel({})", jobs[0].id);
    let open = Open::after(&a.database, "psql", &sql).await;
    let back = b.worker("t").window(2).resumes(&worker.welcome.session_id, &[&jobs[0], &jobs[1]]);
    worker.vanish();
    let mut worker = back.await;
    assert_eq!(worker.welcome.kept.len(), 2);
    open.commit().await;
    let cancelled = worker.cancelled().await;
    assert_eq!((cancelled.id, cancelled.reason()), (jobs[0].id, CancelReason::Cancelled));
    worker.ack(&jobs[1]).await;
}
