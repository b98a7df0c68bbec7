//! Reads the health of the storage, for the metrics and for a warning if a snapshot is held. It is a task of its own,
//! so that it goes on while counting jobs takes long, which is when it matters.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Context,
    snapshot_watch::{Look, Say, SnapshotWatch, overgrown},
};
use crate::{
    metrics::ByTable,
    store::{SnapshotHolder, StorageHealth, StoreError, TableHealth},
};

const EVERY: Duration = Duration::from_secs(15);

pub(super) async fn always(context: Arc<Context>) {
    let mut watch = SnapshotWatch::default();
    let mut failing = false;
    loop {
        let turn = context.turns.wait().await;
        let done = run_once(&context, &mut watch).await;
        drop(turn);
        // Logged once: if Postgres forbids it, it will not work the next time either.
        if let (Err(error), false) = (&done, failing) {
            context.store.failed("reading the health of the storage", error);
        }
        failing = done.is_err();
        tokio::time::sleep(EVERY).await;
    }
}

/// Reads the health once.
pub(super) async fn run_once(context: &Context, watch: &mut SnapshotWatch) -> Result<(), StoreError> {
    let health = context.store.storage_health().await?;
    let worst = overgrown(&health.tables);
    let oldest = health.oldest_snapshot.as_ref();
    let look = watch.look(oldest.map(|holder| holder.xid), worst.is_some(), Instant::now());
    measure(context, &health, look);
    match (look.say, oldest, worst) {
        (Say::Hurts, Some(holder), Some(table)) => warn(holder, table, look.held),
        (Say::Over, ..) => tracing::info!("VACUUM is not held back any more, or the dead rows are gone"),
        _ => {}
    }
    Ok(())
}

fn measure(context: &Context, health: &StorageHealth, look: Look) {
    let m = &context.metrics.storage;
    for table in &health.tables {
        let labels = ByTable { table: table.name };
        m.live_rows.get_or_create(&labels).set(table.live_rows);
        m.dead_rows.get_or_create(&labels).set(table.dead_rows);
    }
    let oldest = health.oldest_snapshot.as_ref();
    // If a holder has no age of its own, it is at least as old as we have observed.
    let age = oldest.map_or(Duration::ZERO, |holder| holder.age.unwrap_or(look.held));
    m.snapshot_age.set(age.as_secs_f64());
    m.snapshot_transactions.set(oldest.map_or(0, |holder| holder.xid_age));
    m.snapshot_hurts.set(i64::from(look.hurts));
    m.queue_usage.set(health.notification_queue_usage);
    m.history_partitions.set(health.history_partitions);
}

fn warn(holder: &SnapshotHolder, table: &TableHealth, held: Duration) {
    tracing::warn!(
        held_by = holder.kind.name(),
        pid = holder.pid,
        name = holder.name,
        user = holder.user,
        database = holder.database,
        application = holder.application,
        state = holder.state,
        seen_for_s = held.as_secs(),
        transaction_age_s = holder.age.map(|age| age.as_secs()),
        xid_age = holder.xid_age,
        table = table.name,
        dead_rows = table.dead_rows,
        "a held snapshot keeps VACUUM from removing dead rows; see docs/operate/troubleshoot.md, When the tables grow"
    );
}
