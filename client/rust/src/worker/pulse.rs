//! Detects that a handler blocked the tokio runtime, so that the worker's task could not run. Logs how long.

use std::time::Duration;

use tokio::time::Instant;

/// Longest time after which the worker's task runs again while the runtime is not blocked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Shortest blocking that is logged.
const MIN_BLOCK: Duration = Duration::from_secs(2);
/// Minimum time between two log lines about blocking.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Time at which the worker's task must run next, and time of the last log line about blocking.
#[derive(Debug)]
pub(crate) struct Pulse {
    due: Instant,
    logged: Option<Instant>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { due: Instant::now() + CHECK_INTERVAL, logged: None }
    }
}

impl Pulse {
    /// Time at which the worker's task wakes up even if no message arrives.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Records that the worker's task runs. Logs a warning if the task runs [`MIN_BLOCK`] late or more.
    pub(crate) fn record(&mut self) {
        let now = Instant::now();
        if let Some(blocked) = self.blocked_for(now)
            && self.logged.is_none_or(|at| now - at >= LOG_INTERVAL)
        {
            self.logged = Some(now);
            tracing::warn!(
                ?blocked,
                "a handler blocked the runtime; use handle_blocking or spawn_blocking for work that does not await"
            );
        }
        if now >= self.due {
            self.due = now + CHECK_INTERVAL;
        }
    }

    fn blocked_for(&self, now: Instant) -> Option<Duration> {
        now.checked_duration_since(self.due).filter(|blocked| *blocked >= MIN_BLOCK)
    }
}
