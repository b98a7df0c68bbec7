//! Maintenance task: ends jobs that have not started by their expiry time, with the outcome `expired`.

use std::sync::Arc;

use super::{Context, until_done};
use crate::store::StoreError;

/// Maximum number of jobs in a statement.
const BATCH: i32 = 1_000;

pub(super) async fn run(context: Arc<Context>) {
    loop {
        context.wake.expiry_alarm().rung().await;
        until_done(&context, "ending expired jobs", || run_once(&context)).await;
    }
}

/// Ends jobs whose expiry time has passed, up to one batch.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let woken = context.store.expire(BATCH).await?;
    context.dispatch.wakeups(&woken);
    // The requested sweep finds the remaining due jobs, and jobs that another transaction has locked.
    context.sweep_now.notify_one();
    context.set_alarms().await
}
