//! Decides when nothing is left to run.

use std::time::{Duration, Instant};

use tokio::{select, time::sleep};

use super::run::Work;

/// How soon the queue is checked again while jobs are ready but none comes: others may be taking them.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_secs(1);
/// How long it may take until a job becomes ready that was on its way to a stopped worker, or that waits for a limit or
/// for a finished job. A job that takes longer waits for something else.
const BECOMES_READY: Duration = Duration::from_secs(1);

/// The jobs of the worker's types that are left.
struct Left {
    ready: i64,
    /// Held by any worker.
    leased: i64,
    waiting: i64,
}

impl Work {
    /// Waits until no command runs, and no job is ready or becomes so. Even then a job may be on its way to this
    /// worker: it arrives while the worker stops, and is run.
    pub(super) async fn drained(&self) {
        let mut running = self.running.subscribe();
        let (mut pause, mut quiet) = (FIRST_LOOK, None);
        loop {
            // We hold the sender, so this never fails.
            let _ = running.wait_for(|count| *count == 0).await;
            match self.left().await {
                Some(left) if left.ready == 0 && *running.borrow_and_update() == 0 => {
                    let quiet = quiet.get_or_insert_with(Instant::now);
                    if left.waiting == 0 || quiet.elapsed() >= BECOMES_READY {
                        return;
                    }
                }
                _ => quiet = None,
            }
            select! {
                _ = running.changed() => (pause, quiet) = (FIRST_LOOK, None),
                () = sleep(pause) => pause = (pause * 2).min(LAST_LOOK),
            }
        }
    }

    /// Whether all is done after the worker has stopped. Jobs that the broker held for it become ready a moment later.
    /// Until then they are leased, as are jobs that other workers run.
    pub(super) async fn is_empty(&self) -> bool {
        let begun = Instant::now();
        loop {
            match self.left().await {
                Some(Left { ready: 0, leased: 0, waiting: 0 }) => return true,
                Some(Left { ready: 0, .. }) if begun.elapsed() >= BECOMES_READY => return true,
                Some(Left { ready: 0, .. }) => sleep(FIRST_LOOK).await,
                _ => return false,
            }
        }
    }

    /// The jobs of our types that are left to run. `None` if the broker does not answer: then the worker cannot end
    /// either, since its outcomes may be unsettled.
    async fn left(&self) -> Option<Left> {
        let mut left = Left { ready: 0, leased: 0, waiting: 0 };
        for task_type in &self.task_types {
            match self.client.get_task_type(task_type).await {
                Ok(found) => {
                    let counts = found.and_then(|found| found.counts).unwrap_or_default();
                    left.ready += counts.ready;
                    left.leased += counts.leased;
                    left.waiting += counts.waiting;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot get the numbers of jobs that are left; trying again");
                    return None;
                }
            }
        }
        Some(left)
    }
}
