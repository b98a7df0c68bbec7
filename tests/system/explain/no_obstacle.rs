//! Tests explanations of jobs that nothing prevents from running. A row lock keeps each job in its state until it has
//! been explained.

use howdah_proto::v1::{JobState, ReasonKind, TaskTypeSettings};

use super::{explain, kinds, reason};
use crate::support::*;

/// Opens a transaction that locks the row of a job. The lock ends when the returned client is dropped.
async fn locked(database: &TestDatabase, table: &str, id: i64) -> tokio_postgres::Client {
    let client = database.connect().await;
    let lock = format!("BEGIN; SELECT FROM howdah.{table} WHERE id = {id} FOR UPDATE");
    client.batch_execute(&lock).await.expect("a lock");
    client
}

#[tokio::test]
async fn a_scheduled_job_whose_time_has_come_is_due() {
    // No broker runs while the job becomes due and is locked, because a broker could make the job ready before the
    // lock.
    let broker = TestBroker::start().await;
    let id = broker.enqueue("s").delay(HOUR).await;
    let database = broker.database.clone();
    broker.stop().await;
    database.sql("UPDATE howdah.scheduled SET run_at = now()").await;
    let lock = locked(&database, "scheduled", id).await;
    let broker = TestBroker::on(&database).await;
    eventually("the explanation that the job is due", async || kinds(&broker, id).await == [ReasonKind::Due]).await;
    assert_eq!(explain(&broker, id).await.expected_in, Some(wire(secs(0))));
    lock.batch_execute("ROLLBACK").await.expect("rollback");
    broker.until_state(id, JobState::Ready).await;
}

#[tokio::test]
async fn a_waiting_job_is_due_when_what_it_waited_for_is_over_or_a_slot_is_free() {
    let broker = TestBroker::start().await;
    let first = broker.enqueue("a").await;
    let after = broker.enqueue(new_job("b", "").after(&[first])).await;
    broker.sql("DELETE FROM howdah.dependency").await;
    reason(&broker, after, ReasonKind::Due).await;

    broker.set("l", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let jobs: Vec<_> = (0..2).map(|_| new_job("l", "").limit_key("k")).collect();
    let [holder, next] = broker.enqueue_all(jobs).await[..] else { panic!("two") };
    broker.until_state(holder, JobState::Ready).await;
    let _lock = locked(&broker.database, "waiting", next).await;
    broker.cancel(&[holder]).await;
    let due = reason(&broker, next, ReasonKind::Due).await;
    assert_eq!(due.key, "k");
}

#[tokio::test]
async fn a_ready_job_for_which_a_worker_has_room_is_starting() {
    let broker = TestBroker::start().await;
    broker.set("r", TaskTypeSettings { paused: true, ..Default::default() }).await;
    let id = broker.enqueue("r").await;
    let lock = locked(&broker.database, "ready", id).await;
    let mut worker = broker.worker("r").await;
    reason(&broker, id, ReasonKind::TypePaused).await;
    broker.set("r", TaskTypeSettings::default()).await;
    reason(&broker, id, ReasonKind::Starting).await;
    assert_eq!(explain(&broker, id).await.expected_in, Some(wire(secs(0))));
    lock.batch_execute("ROLLBACK").await.expect("rollback");
    assert_eq!(worker.next().await.id, id);
}

/// Checks that the name of each reason occurs in one of these test files.
#[test]
fn every_reason_of_the_protocol_has_a_test() {
    let tests = [
        include_str!("../explain.rs"),
        include_str!("position.rs"),
        include_str!("pulls.rs"),
        include_str!("rate.rs"),
        include_str!("no_obstacle.rs"),
        include_str!("../stores/moving.rs"),
    ];
    let reasons: Vec<ReasonKind> = (1..).map_while(|number| ReasonKind::try_from(number).ok()).collect();
    assert!(reasons.len() >= 29, "{reasons:?}");
    let is_tested = |reason: &ReasonKind| {
        let name = format!("ReasonKind::{reason:?}");
        tests.iter().any(|test| {
            let mut uses = test.match_indices(&name);
            uses.any(|(at, _)| !test[at + name.len()..].starts_with(|next: char| next.is_alphanumeric()))
        })
    };
    let missing: Vec<&ReasonKind> = reasons.iter().filter(|reason| !is_tested(reason)).collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
}
