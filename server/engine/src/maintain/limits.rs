//! Maintenance task: applies changed limits of a task type to its existing jobs and leases, in small transactions. The
//! database records the remaining work, so any broker can continue if this one stops.

use std::{sync::Arc, time::Duration};

use super::{Context, admit, repeat};
use crate::store::StoreError;

/// Maximum number of limit keys, and of jobs, that one step changes.
const BATCH: i32 = 500;

pub(super) async fn run(context: Arc<Context>) {
    // Starts at once, because a change of limits may be unfinished since before this broker started.
    repeat(&context, &context.limits_now, "applying changed limits", || run_once(&context)).await;
}

/// Makes one step and returns the time until the next step. The limit keys of this step are checked at once, so that
/// limit keys of other task types wait for at most one step.
async fn run_once(context: &Context) -> Result<Option<Duration>, StoreError> {
    let next = context.store.continue_limit_changes(BATCH).await?;
    if next.is_some_and(|next| next.is_zero()) {
        for _ in 0..=BATCH / admit::BATCH {
            admit::run_once(context).await?;
        }
    } else if next.is_some() {
        context.wake.limit_in(Duration::ZERO);
    }
    Ok(next)
}
