//! History in days: partitions are made ahead, and dropped when they are old. Old request keys go.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::store::StoreError;

const EVERY: Duration = Duration::from_secs(3600);
/// Days ahead for which there is a partition.
const AHEAD: i32 = 3;
/// Request keys in a statement at most.
const BATCH: i32 = 10_000;

pub(super) async fn always(context: Arc<Context>) {
    loop {
        until_done("keeping history", || run_once(&context)).await;
        tokio::time::sleep(EVERY).await;
    }
}

/// Makes, drops, forgets.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    context.store.make_partitions(AHEAD).await?;
    match context.store.drop_partitions(i32::from(context.config.history_days)).await {
        Ok(0) => {}
        Ok(partitions) => {
            tracing::info!(partitions, days_kept = context.config.history_days, "dropped old history");
        }
        // Every ack waits behind us while we wait for a long reader: not again before the next round.
        Err(error) => tracing::warn!(%error, "old history is in use; it is dropped in an hour"),
    }
    context.store.forget_gates().await?;
    while context.store.forget_requests(BATCH).await? {}
    Ok(())
}
