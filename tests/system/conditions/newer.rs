//! Tests conditions that only Postgres 17 and later can have.

use howdah_cli::postgres::{Binaries, Cluster};

use super::*;
use crate::refusing::timeouts::{knows_transaction_timeout, set_timeout};

pub(super) const TRANSACTION_TIMEOUT: Condition = Condition {
    name: "A short transaction_timeout",
    cause: "`ALTER DATABASE … SET transaction_timeout = '1s'` (Postgres 17 or later).",
    remedy: "Nothing needs to be done: brokers set their own limit for each transaction.",
    doctor: Doctor::Nothing,
    probe: "retention",
    exceptions: &[],
};

#[tokio::test]
async fn a_transaction_timeout_of_a_second_stops_nothing() {
    let database = database().await;
    if !knows_transaction_timeout(&database).await {
        return;
    }
    set_timeout(&database, "1s").await;
    let arena = Arena::on(&database, |_| {}).await;
    TRANSACTION_TIMEOUT.hold(&arena, async || {}).await;
}

pub(super) const FULL_QUEUE: Condition = Condition {
    name: "A full queue of notifications",
    cause: "A session that listens stays in a transaction, so that the queue of `NOTIFY` is full (8 GB, or `max_notify_queue_pages`).",
    remedy: "End the session that `pg_stat_activity` shows as idle in transaction. Until then brokers poll, and jobs start up to \
             `poll_interval` later.",
    doctor: Doctor::Finds("notifications"),
    probe: "enqueue by SQL",
    exceptions: &[],
};

#[tokio::test]
async fn a_full_queue_of_notifications_stops_nothing() {
    postgres_programs().await;
    let major = Binaries::find(None).expect("the Postgres of this run").major();
    if major < 17 {
        eprintln!("left out: Postgres {major} has no max_notify_queue_pages");
        return;
    }
    let mut config = cluster_config();
    config.settings.push(("max_notify_queue_pages".into(), "64".into()));
    let cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("a database");
    let arena = Arena::on(&TestDatabase { url: cluster.url("app") }, |_| {}).await;
    let other = TestDatabase { url: cluster.url("postgres") }.connect().await;
    other.batch_execute("LISTEN x").await.expect("a listener");
    // In one batch with LISTEN, BEGIN would make LISTEN wait for the end of the transaction.
    other.batch_execute("BEGIN").await.expect("a transaction");
    let flood = TestDatabase { url: cluster.url("postgres") }.connect().await;
    let notify = "SELECT pg_notify('y', repeat('x', 7000) || n) FROM generate_series(1, 3) n";
    while flood.batch_execute(notify).await.is_ok() {}
    FULL_QUEUE.hold(&arena, async || other.batch_execute("ROLLBACK").await.expect("the end")).await;
}
