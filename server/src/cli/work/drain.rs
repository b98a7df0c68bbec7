//! When is nothing left to run?

use std::time::Duration;

use tokio::{select, time::sleep};

use super::run::Work;

/// Between two looks at the queue, while jobs are ready but none comes: others may be taking them.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_secs(1);

impl Work {
    /// Waits until no command runs and no job is ready. A job may be on its way to this worker
    /// even then: it comes while the worker stops, and is run.
    pub(super) async fn drained(&self) {
        let mut running = self.running.subscribe();
        let mut pause = FIRST_LOOK;
        loop {
            // The sender is ours, so this never fails.
            let _ = running.wait_for(|count| *count == 0).await;
            if self.ready().await == Some(0) && *running.borrow_and_update() == 0 {
                return;
            }
            select! {
                _ = running.changed() => pause = FIRST_LOOK,
                () = sleep(pause) => pause = (pause * 2).min(LAST_LOOK),
            }
        }
    }

    /// Jobs of our types that are ready; `None` if the broker does not answer: then the worker
    /// cannot end either, since what it holds may be unsettled.
    pub(super) async fn ready(&self) -> Option<i64> {
        let mut ready = 0;
        for task_type in &self.task_types {
            match self.client.get_task_type(task_type).await {
                Ok(found) => ready += found.and_then(|found| found.counts).map_or(0, |counts| counts.ready),
                Err(error) => {
                    tracing::warn!(%error, "cannot see what is left to run, asking again");
                    return None;
                }
            }
        }
        Some(ready)
    }
}
