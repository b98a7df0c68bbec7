//! Maintenance task: updates the metrics of overdue schedules, of day partitions created in advance, and of table
//! sizes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{BEFORE_READINGS, Context, retention::AHEAD, run_serialized};
use crate::{metrics::ByTable, store::StoreError};

const EVERY: Duration = Duration::from_secs(15);

/// Tables whose sizes are separate in the metrics. The sizes of all other tables are added up.
const TABLES: [&str; 8] = ["ready", "leased", "scheduled", "waiting", "dead", "history", "payload", "audit"];

pub(super) async fn run(context: Arc<Context>) {
    tokio::time::sleep(BEFORE_READINGS).await;
    loop {
        run_serialized(&context, "reading the maintenance metrics", || run_once(&context)).await;
        tokio::time::sleep(EVERY).await;
    }
}

pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let state = context.store.maintenance_state(AHEAD).await?;
    let metrics = &context.metrics;
    metrics.schedules.delay.set(state.schedule_delay.as_secs_f64());
    metrics.schedules.failing.set(state.schedules_failing);
    metrics.storage.partition_days_ahead.set(state.days_ahead);
    for (table, bytes) in by_label(&state.tables) {
        metrics.storage.table_bytes.get_or_create(&ByTable { table }).set(bytes);
    }
    Ok(())
}

fn by_label(tables: &[(String, i64)]) -> BTreeMap<&'static str, i64> {
    let mut sizes: BTreeMap<&'static str, i64> = BTreeMap::new();
    for (name, bytes) in tables {
        let label = TABLES.into_iter().find(|table| table == name).unwrap_or("other");
        *sizes.entry(label).or_default() += bytes;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_without_a_size_of_their_own_are_added_up() {
        let tables = [("ready", 1), ("grants", 2), ("schedule", 4)].map(|(name, bytes)| (name.to_owned(), bytes));
        assert_eq!(by_label(&tables), BTreeMap::from([("ready", 1), ("other", 6)]));
    }
}
