//! Maintenance task: moves jobs from scheduled to ready when they are due.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Context, until_done};
use crate::store::StoreError;

/// Maximum number of jobs in a statement.
const BATCH: i32 = 1_000;
/// Interval of full searches for due jobs, which ignore `scheduled_floor`. They find jobs whose transaction committed
/// late.
const FULL_SCAN: Duration = Duration::from_secs(60);

pub(super) async fn run(context: Arc<Context>) {
    let mut full_scan = Instant::now() + FULL_SCAN;
    loop {
        tokio::select! {
            () = context.wake.due_alarm().rung() => {}
            () = tokio::time::sleep_until(full_scan) => {}
        }
        if full_scan <= Instant::now() {
            full_scan = Instant::now() + FULL_SCAN;
            *context.scheduled_floor.lock() = None;
        }
        until_done(&context, "promoting scheduled jobs", || run_once(&context)).await;
    }
}

/// Moves all due jobs from scheduled to ready.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    promote_coordinated(context).await?;
    loop {
        let floor = *context.scheduled_floor.lock();
        let (moved, next_floor) = context.store.promote(floor, BATCH).await?;
        let jobs: u64 = moved.iter().map(|ready| ready.jobs).sum();
        context.dispatch.ready(moved.into_iter());
        if jobs < BATCH as u64 {
            if next_floor.is_some() {
                *context.scheduled_floor.lock() = next_floor;
            }
            return context.set_alarms().await;
        }
    }
}

/// Moves due jobs with the mark `coordinated` (jobs with limits, stages or dependencies) to ready, or to waiting while
/// a limit blocks them.
async fn promote_coordinated(context: &Context) -> Result<(), StoreError> {
    loop {
        let woken = context.store.promote_coordinated(BATCH).await?;
        context.dispatch.wakeups(&woken);
        if woken.ready_jobs() < BATCH as u64 && !woken.limits {
            return Ok(());
        }
    }
}
