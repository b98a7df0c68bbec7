//! Maintenance task: ends attempts whose deadline has passed. Their jobs are retried according to their retry policies,
//! or become dead.

use std::sync::Arc;

use super::{Context, until_done};
use crate::{store::StoreError, wake::Loss};

/// Maximum number of leases in a statement.
const BATCH: i32 = 1_000;

pub(super) async fn run(context: Arc<Context>) {
    loop {
        context.wake.deadline_alarm().rung().await;
        until_done(&context, "ending attempts that timed out", || run_once(&context)).await;
    }
}

/// Ends every attempt whose deadline has passed, and informs the workers.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    loop {
        let (ended, more) = context.release.time_out(BATCH).await?;
        context.tell_workers(ended.into_iter().filter_map(|(lease, broker)| Some((lease, broker?))), Loss::TimedOut);
        if !more {
            return context.set_alarms().await;
        }
    }
}
