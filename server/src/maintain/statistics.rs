//! Sums up what has happened into the statistics of task types.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::store::StoreError;

/// How often. An idle broker asks nothing else so rarely, so it costs nothing; what `GetStats` answers is as old as this.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// Somebody else has done it if it was done in this time.
const RECENT_MS: i64 = 4_000;
/// The most changes in a statement: a tenth of a second.
const BATCH: i32 = 20_000;

pub(super) async fn always(context: Arc<Context>) {
    loop {
        until_done(&context, "summing up statistics", || run_once(&context)).await;
        tokio::time::sleep(EVERY).await;
    }
}

/// Sums up all that there is.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let mut every_ms = RECENT_MS;
    while let Some(changes) = context.store.sum_statistics(BATCH, every_ms).await?
        && changes >= i64::from(BATCH)
    {
        every_ms = 0;
    }
    Ok(())
}
