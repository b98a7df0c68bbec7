//! Tests a broker whose row in `howdah.broker`, on which its leases depend, stays locked for longer than its lease.

use howdah_core::config::Config;
use howdah_proto::v1::LeasedJob;
use rustix::process::Signal;

use super::Open;
use crate::support::*;

/// Sets a broker lease of 10 s: long enough for a slow machine, and short enough that the test can wait for its expiry.
fn quick(config: &mut Config) {
    (config.broker_lease, config.renew_interval) = (secs(10), secs(1));
}

/// Returns the id of the only broker with this name.
async fn number(broker: &TestBroker, name: &str) -> i64 {
    broker.count(&format!("SELECT id::bigint FROM howdah.broker WHERE name = '{name}'")).await
}

/// Asserts that the jobs are still leased and in their first attempt.
async fn assert_held_once(broker: &TestBroker, jobs: &[LeasedJob]) {
    let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    let sql = format!("SELECT count(*) FROM howdah.leased WHERE attempt = 1 AND id IN ({})", ids.join(","));
    assert_eq!(broker.count(&sql).await, jobs.len() as i64);
}

#[tokio::test]
async fn a_broker_whose_row_is_locked_goes_on_and_loses_none_of_its_jobs() {
    let named = |name: &'static str| {
        move |config: &mut Config| {
            quick(config);
            config.name = name.into();
        }
    };
    let a = TestBroker::start_with(named("a")).await;
    let b = a.another_with(named("b")).await;
    let mut worker = a.worker("t").window(4).await;
    a.enqueue_all(["t"; 2]).await;
    let jobs = worker.take(2).await;
    let number = number(&a, "a").await;
    let sql = format!("SELECT FROM howdah.broker WHERE id = {number} FOR UPDATE");
    let open = Open::after(&a.database, "psql", &sql).await;
    let expired = format!("SELECT expires <= now() FROM howdah.broker WHERE id = {number}");
    a.until("the expiry of the broker's row", &expired).await;
    // Inserts the row of a dead broker. When the row is deleted, the second broker has run its rescue at least once.
    a.sql("INSERT INTO howdah.broker (id, name, expires) VALUES (-1, 'gone', now())").await;
    b.until(
        "the deletion of the row of the broker gone",
        "SELECT NOT EXISTS (SELECT FROM howdah.broker WHERE id = -1)",
    )
    .await;
    assert_held_once(&a, &jobs).await;
    let third = a.enqueue("t").await;
    let job = worker.next().await;
    assert_eq!(job.id, third);
    for job in jobs.iter().chain([&job]) {
        worker.ack(job).await;
    }
    assert_eq!(a.count("SELECT count(*) FROM howdah.history WHERE attempt = 1").await, 3);
    open.roll_back().await;
    let deleted = format!("SELECT NOT EXISTS (SELECT FROM howdah.broker WHERE id = {number})");
    a.until("the deletion of the broker's old row", &deleted).await;
}

#[tokio::test]
async fn brokers_whose_table_is_locked_rescue_nothing_and_go_on_when_it_is_free() {
    let (a, b) = TestBroker::pair_with(quick).await;
    let mut worker = a.worker("t").window(3).await;
    let mut other = b.worker("u").await;
    a.enqueue_all(["t"; 2]).await;
    let jobs = worker.take(2).await;
    let open = Open::after(&a.database, "psql", "LOCK TABLE howdah.broker IN SHARE MODE").await;
    a.until("the expiry of all brokers' rows", "SELECT bool_and(expires <= now()) FROM howdah.broker").await;
    // Running jobs are settled as usual. New jobs are stored but not claimed.
    worker.ack(&jobs[0]).await;
    a.enqueue("t").await;
    b.enqueue("u").await;
    assert_held_once(&a, &jobs[1..]).await;
    open.roll_back().await;
    let next = worker.next().await;
    let job = other.next().await;
    other.ack(&job).await;
    worker.ack(&next).await;
    worker.ack(&jobs[1]).await;
    assert_eq!(a.count("SELECT count(*) FROM howdah.history WHERE attempt = 1").await, 4);
}

#[tokio::test]
async fn the_log_says_who_has_locked_the_row_of_the_broker() {
    let database = database().await;
    let quick = ["--set", "broker_lease=12s", "--set", "renew_interval=200ms"];
    let (mut broker, log) = Program::serve_logged(&database, &quick).await;
    let open = Open::after(&database, "psql", "SELECT FROM howdah.broker FOR UPDATE").await;
    broker.until("a second row of the broker", "SELECT count(*) = 2 FROM howdah.broker").await;
    broker.program.signal(Signal::TERM);
    assert!(broker.program.ended().await.success());
    let log = with_timeout("the log", log).await.expect("no panic");
    let holder = format!("locked by backend {} (\"psql\")", open.pid);
    let has_line = |line: &str, who: &str| log.lines().any(|l| l.contains(line) && l.replace('\\', "").contains(who));
    assert!(has_line("renewing the broker's lease failed; trying again", &holder), "{log}");
    // The log line need not name the holder of the lock, because the renewal may time out before the broker finds the
    // holder.
    assert!(has_line("the row of this broker stays locked", ""), "{log}");
}
