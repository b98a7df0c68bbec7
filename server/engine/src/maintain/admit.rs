//! Maintenance task: moves jobs from waiting to ready when their limit keys allow more jobs.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::store::StoreError;

/// Maximum number of limit keys that one statement checks.
pub(super) const BATCH: i32 = 200;
/// Pause before a retry while another broker is checking the same keys.
const BUSY: Duration = Duration::from_millis(5);

pub(super) async fn run(context: Arc<Context>) {
    loop {
        context.wake.limit_alarm().rung().await;
        until_done(&context, "checking limits", || run_once(&context)).await;
    }
}

/// Checks the limit keys that are due, moves the jobs that they allow to ready, and sets the alarm for the next limit
/// key.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let admitted = context.store.admit(BATCH).await?;
    context.metrics.admitted.inc_by(admitted.ready_jobs());
    context.dispatch.wakeups(&admitted);
    if let Some(us) = admitted.limit_in_us {
        let least = if admitted.ready.is_empty() { BUSY } else { Duration::ZERO };
        context.wake.limit_in(Duration::from_micros(us.max(0) as u64).max(least));
    }
    Ok(())
}
