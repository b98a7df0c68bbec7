//! Minimum transfer rate of a message. A message has a total time limit, and a minimum rate while other messages wait
//! for memory.

use std::{future::Future, pin::pin, time::Duration};

use tokio::time::{Instant, timeout};

/// Length of a window in which the transfer rate is measured.
const WINDOW: Duration = Duration::from_secs(1);
/// Minimum number of bytes per window while others wait for memory. A smaller message has no minimum rate, because it holds
/// little memory; its total time limit is enough.
pub(crate) const LEAST: usize = 64 << 10;

/// Measures the transfer time of a message, without its wait for memory.
#[derive(Debug)]
pub(crate) struct Pace {
    left: Duration,
    window: Duration,
    /// Bytes received in the current window (`bytes`) and in total.
    bytes: usize,
    total: usize,
}

/// Reason to reject a slow message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slow {
    /// The total time limit is exceeded.
    Late,
    /// Less than [`LEAST`] arrived in a window while other messages waited for memory.
    Others,
}

impl Pace {
    pub(crate) fn new(within: Duration) -> Self {
        Self { left: within, window: WINDOW, bytes: 0, total: 0 }
    }

    /// Waits for the next data of the message. `is_short` returns whether other messages wait for memory.
    pub(crate) async fn next<F: Future>(&mut self, next: F, is_short: impl Fn() -> bool) -> Result<F::Output, Slow> {
        let mut next = pin!(next);
        loop {
            let begun = Instant::now();
            let came = timeout(self.left.min(self.window), &mut next).await;
            let took = begun.elapsed();
            self.left = self.left.saturating_sub(took);
            self.window = self.window.saturating_sub(took);
            if let Ok(came) = came {
                return Ok(came);
            }
            if self.left.is_zero() {
                return Err(Slow::Late);
            }
            if self.window.is_zero() {
                if self.total >= LEAST && self.bytes < LEAST && is_short() {
                    return Err(Slow::Others);
                }
                (self.window, self.bytes) = (WINDOW, 0);
            }
        }
    }

    /// Counts received bytes.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.total += bytes;
        if self.window.is_zero() && self.bytes >= LEAST {
            (self.window, self.bytes) = (WINDOW, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_arrive_is_refused_in_time_and_sooner_while_others_wait() {
        let mut pace = Pace::new(Duration::from_secs(30));
        assert_eq!(pace.next(pending::<()>(), || false).await, Err(Slow::Late));
        let mut pace = Pace::new(Duration::from_secs(60));
        pace.came(LEAST);
        assert_eq!(pace.next(pending::<()>(), || true).await, Err(Slow::Others));
    }
}
