//! Tests the loss of a primary whose synchronous replica is promoted, and a server that becomes read-only.

use std::time::Duration;

use howdah_cli::postgres::StopMode;
use tokio::time::{Instant, sleep};

use super::{
    load::{Load, Plan, durable},
    mix::Mix,
};
use crate::support::{Replicated, TestDatabase};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_synchronous_replica_that_is_promoted_has_all_that_was_accepted() {
    let mut both = Replicated::synchronous(&durable()).await;
    let mut plan = Plan::new(Mix::All, 90);
    plan.patience = Duration::from_secs(40);
    let mut load = Load::start_at(plan, both.at_primary(), &both.url()).await;
    load.produce();
    sleep(Duration::from_secs(20)).await;
    both.primary.stop(StopMode::Immediate).await;
    sleep(Duration::from_secs(2)).await;
    let accepted = load.accepted();
    load.database = both.at_replica();
    let began = Instant::now();
    both.promote().await;
    load.accept(accepted + 1).await;
    eprintln!("from the promotion to an accepted job: {:?}", began.elapsed());

    sleep(Duration::from_secs(10)).await;
    for _ in 0..3 {
        read_only(&load.database, "on").await;
        sleep(Duration::from_secs(7)).await;
        read_only(&load.database, "off").await;
        let began = Instant::now();
        load.progress(1_000).await;
        eprintln!("from read-write to a thousand accepted jobs: {:?}", began.elapsed());
    }
    load.check("a promoted replica, and read-only for 7 s three times", 1).await;
}

/// Makes the database read-only, so that it looks like a demoted primary to its sessions.
async fn read_only(database: &TestDatabase, how: &str) {
    let client = database.connect().await;
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {how}");
    client.batch_execute("SET default_transaction_read_only = off").await.expect("SET default_transaction_read_only");
    client.batch_execute(&set).await.expect("set");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
}
