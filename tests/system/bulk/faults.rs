//! Tests bulk operations while brokers are killed or stopped, with several operations at once, and with locked jobs.

use super::*;

/// Returns the number of cancelled jobs, and asserts that each job is in history once.
async fn cancelled_once(broker: &Service) -> i64 {
    let twice = "SELECT count(*) FROM (SELECT id FROM howdah.history GROUP BY id HAVING count(*) > 1) twice";
    assert_eq!(broker.count(twice).await, 0);
    broker.count("SELECT count(*) FROM howdah.history WHERE outcome = 'cancelled'").await
}

/// Flags for a broker whose row in `howdah.broker` expires soon after the broker stops.
pub(super) const QUICK: [&str; 4] = ["--set", "broker_lease=2s", "--set", "renew_interval=500ms"];

/// Configures a broker whose row in `howdah.broker` expires soon after the broker stops.
pub(super) fn short_lease(config: &mut howdah_core::config::Config) {
    (config.renew_interval, config.broker_lease) = (millis(200), secs(1));
}

#[tokio::test]
async fn when_a_broker_is_killed_another_one_goes_on_and_each_job_is_changed_once() {
    let database = database().await;
    let mut killed = Program::serve(&database, &QUICK).await;
    killed.enqueue_all(vec!["k"; 600]).await;
    let bulk = killed.start_bulk(slow(BulkOperation::Cancel, "k")).await;
    killed.begun_bulk(bulk.id).await;
    killed.kill().await;
    let other = TestBroker::on_with(&database, short_lease).await;
    other.hurry(bulk.id).await;
    let ended = other.ended_bulk(bulk.id).await;
    assert_eq!((ended.state(), ended.done_count, ended.failed_count), (BulkState::Completed, 600, 0));
    assert_eq!((cancelled_once(&other).await, other.audited().await), (600, 600));
}

#[tokio::test]
async fn a_broker_killed_inside_a_transaction_has_changed_nothing_of_it() {
    let database = database().await;
    // A trigger blocks the broker's transaction until the test releases an advisory lock. The trigger polls instead of waiting
    // for the lock, because brokers give up soon on locks.
    let gate = database.connect().await;
    gate.batch_execute("SELECT pg_advisory_lock(7)").await.expect("the gate");
    let mut killed = Program::serve(&database, &QUICK).await;
    let is_shut = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let meddle = format!(
        "CREATE FUNCTION howdah.meddle() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN WHILE ({is_shut}) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NEW; END $$;
         CREATE TRIGGER meddle BEFORE UPDATE OF done ON howdah.bulk FOR EACH ROW WHEN (OLD.done <> NEW.done)
         EXECUTE FUNCTION howdah.meddle()"
    );
    database.sql(&meddle).await;
    killed.enqueue_all(vec!["k"; 100]).await;
    let bulk = killed.start_bulk(spec(BulkOperation::Cancel, "k")).await;
    let inside = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                  AND query LIKE '%UPDATE howdah.bulk SET done =%' AND pid <> pg_backend_pid()";
    eventually("a transaction that has changed jobs", async || database.count(inside).await == 1).await;
    killed.kill().await;
    gate.batch_execute("SELECT pg_advisory_unlock(7)").await.expect("an open gate");
    eventually("the rollback of the killed broker's transaction", async || database.count(inside).await == 0).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 100);
    let other = TestBroker::on_with(&database, short_lease).await;
    assert_eq!(other.ended_bulk(bulk.id).await.done_count, 100);
    assert_eq!((cancelled_once(&other).await, other.audited().await), (100, 100));
}

#[tokio::test]
async fn when_a_broker_stops_another_one_goes_on_at_once() {
    let (a, b) = TestBroker::pair().await;
    a.enqueue_all(vec!["s"; 600]).await;
    let bulk = a.start_bulk(slow(BulkOperation::Cancel, "s")).await;
    a.begun_bulk(bulk.id).await;
    a.stop().await;
    b.hurry(bulk.id).await;
    assert_eq!(b.ended_bulk(bulk.id).await.done_count, 600);
    assert_eq!((cancelled_once(&b).await, b.audited().await), (600, 600));
}

#[tokio::test]
async fn two_brokers_never_work_on_the_same_batch() {
    let (a, b) = TestBroker::pair().await;
    a.enqueue_all(vec!["t"; 3_000]).await;
    let mut bulks = Vec::new();
    for broker in [&a, &b, &a, &b] {
        bulks.push(broker.start_bulk(spec(BulkOperation::Cancel, "t")).await.id);
    }
    // Removes the owner of each operation at an arbitrary moment, so that a broker takes the operation over.
    let mut done = 0;
    for id in bulks {
        a.sql(&format!("UPDATE howdah.bulk SET owner = NULL WHERE id = {id} AND ended IS NULL")).await;
        done += b.ended_bulk(id).await.done_count;
    }
    assert_eq!((done, cancelled_once(&a).await, a.audited().await), (3_000, 3_000, 3_000));
}

#[tokio::test]
async fn a_broker_that_lost_its_bulk_operation_changes_nothing_of_it() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(vec!["o"; 600]).await;
    let bulk = broker.start_bulk(slow(BulkOperation::Cancel, "o")).await;
    broker.begun_bulk(bulk.id).await;
    // Simulates that another live broker has taken over the operation.
    broker
        .sql(&format!(
            "INSERT INTO howdah.broker (id, name, expires) VALUES (1000, 'thief', now() + interval '1 hour');
             UPDATE howdah.bulk SET owner = 1000, jobs_per_s = NULL, next_at = now() WHERE id = {}",
            bulk.id
        ))
        .await;
    let before = broker.bulk(bulk.id).await;
    assert_eq!(before.broker, "thief");
    // The first broker runs another operation to its end, and does not touch the operation that it lost.
    broker.enqueue_all(vec!["o.other"; 2_500]).await;
    broker.ended_bulk(broker.start_bulk(spec(BulkOperation::Cancel, "o.other")).await.id).await;
    assert_eq!(broker.bulk(bulk.id).await.done_count, before.done_count);
    broker.sql("DELETE FROM howdah.broker WHERE id = 1000").await;
    assert_eq!(broker.ended_bulk(bulk.id).await.done_count, 600);
}

#[tokio::test]
async fn locked_jobs_are_changed_when_the_lock_ends_and_delay_no_other_jobs() {
    let broker = TestBroker::start().await;
    let ids = broker.enqueue_all(vec!["l"; 20]).await;
    let locker = broker.database.connect().await;
    let lock = format!("BEGIN; SELECT FROM howdah.ready WHERE id IN ({}, {}) FOR UPDATE", ids[3], ids[11]);
    locker.batch_execute(&lock).await.expect("a lock");
    let bulk = broker.start_bulk(spec(BulkOperation::Cancel, "l")).await;
    // Reads count and problem with one call, because each round of the operation resets the count of failed jobs.
    eventually("18 cancelled jobs, and a problem that names a locked job", async || {
        let at = broker.bulk(bulk.id).await;
        let says_why = at.problem.starts_with("job ") && at.problem.contains("locked");
        (at.done_count, at.failed_count) == (18, 2) && says_why
    })
    .await;
    locker.batch_execute("ROLLBACK").await.expect("no lock");
    let ended = broker.ended_bulk(bulk.id).await;
    assert_eq!((ended.state(), ended.done_count, ended.failed_count), (BulkState::Completed, 20, 0));
    assert_eq!(broker.audited().await, 20);
}
