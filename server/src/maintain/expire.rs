//! Jobs that have not begun by their time end as expired.

use std::sync::Arc;

use super::{Context, until_done};
use crate::store::StoreError;

/// Jobs in a statement at most.
const BATCH: i32 = 1_000;

pub(super) async fn always(context: Arc<Context>) {
    loop {
        context.wake.expiry_alarm().rung().await;
        until_done("ending jobs that expired", || run_once(&context)).await;
    }
}

/// Ends those whose time has come; more than one statement takes are found by the next sweep at once.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let woken = context.store.expire(BATCH).await?;
    context.dispatch.wakeups(&woken);
    context.sweep_now.notify_one();
    Ok(())
}
