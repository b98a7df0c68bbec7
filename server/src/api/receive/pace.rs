//! How fast a message must arrive. It has a time in all; and while others wait for memory, it must not be slow.

use std::{future::Future, pin::pin, time::Duration};

use tokio::time::{Instant, timeout};

/// How long is measured at once.
const WINDOW: Duration = Duration::from_secs(1);
/// The fewest bytes that must arrive in that time while others wait for memory. A message that has not brought as many holds
/// too little to be refused for it: its time in all is enough.
pub(crate) const LEAST: usize = 64 << 10;

/// Measures the time in which a message arrives, without the time in which it waits for memory.
#[derive(Debug)]
pub(crate) struct Pace {
    left: Duration,
    window: Duration,
    /// What came in this window, and in all.
    bytes: usize,
    total: usize,
}

/// Why a message is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slow {
    /// Its time is over.
    Late,
    /// It came slower than [`LEAST`] while others waited.
    Others,
}

impl Pace {
    pub(crate) fn new(within: Duration) -> Self {
        Self { left: within, window: WINDOW, bytes: 0, total: 0 }
    }

    /// Waits for what comes next. `is_short`: whether others wait for memory.
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

    /// So many bytes have come.
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
    async fn what_does_not_come_has_its_time_and_less_while_others_wait() {
        let mut pace = Pace::new(Duration::from_secs(30));
        assert_eq!(pace.next(pending::<()>(), || false).await, Err(Slow::Late));
        let mut pace = Pace::new(Duration::from_secs(60));
        pace.came(LEAST);
        assert_eq!(pace.next(pending::<()>(), || true).await, Err(Slow::Others));
    }
}
