//! Jobs that have not started by their expiry time end as expired.

use std::sync::Arc;

use super::{Context, until_done};
use crate::store::StoreError;

/// The most jobs in a statement.
const BATCH: i32 = 1_000;

pub(super) async fn always(context: Arc<Context>) {
    loop {
        context.wake.expiry_alarm().rung().await;
        until_done(&context, "ending expired jobs", || run_once(&context)).await;
    }
}

/// Ends jobs whose expiry time has passed, as many as one statement takes.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let woken = context.store.expire(BATCH).await?;
    context.dispatch.wakeups(&woken);
    // Others that are due already, and those of which another transaction has a lock, are for the sweep.
    context.sweep_now.notify_one();
    context.set_alarms().await
}
