//! Commit delay: outcomes that arrive one by one share a commit, because a commit costs Postgres far more than an
//! outcome. The delay keeps no worker idle: the broker frees a worker's capacity when it has read the outcome.
//!
//! Without the delay, a batch has only the outcomes that arrived during the previous commit. At a thousand jobs per
//! second that is less than one, so each outcome would have a separate commit. If more outcomes are expected soon, the
//! first one waits for them. The Postgres setting `commit_delay` saves commits too, but no statements.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::{sync::Notify, time};

/// Maximum mean gap between outcomes for which the commit delay applies.
const WORTH: Duration = Duration::from_millis(2);
/// The newest gap has the weight `1 / NEWEST` in the moving average of gaps.
const NEWEST: u32 = 8;
/// Maximum gap in the moving average; longer gaps between outcomes count as this one. After a pause, several outcomes
/// must arrive before the delay applies again.
const LONGEST_GAP: Duration = Duration::from_millis(20);

/// Decides when queued outcomes are written.
pub(super) struct CommitDelay {
    /// Maximum wait.
    longest: Duration,
    pace: Mutex<Pace>,
    /// Notified to end the delay early: a caller waits for its answer, or a job waits for the end of another one.
    skip: Notify,
}

/// Rate at which outcomes arrive.
struct Pace {
    last: Instant,
    mean_gap: Duration,
}

impl Pace {
    fn arrived(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.last).min(LONGEST_GAP);
        self.mean_gap = (self.mean_gap * (NEWEST - 1) + gap) / NEWEST;
        self.last = now;
    }

    /// Returns whether another outcome is expected while the first one waits.
    fn is_worthwhile(&self) -> bool {
        self.mean_gap < WORTH
    }
}

impl CommitDelay {
    pub(super) fn new(longest: Duration) -> Self {
        let pace = Pace { last: Instant::now(), mean_gap: LONGEST_GAP };
        Self { longest, pace: Mutex::new(pace), skip: Notify::new() }
    }

    /// Records the arrival of outcomes.
    pub(super) fn arrived(&self) {
        self.pace.lock().arrived(Instant::now());
    }

    /// Ends the current commit delay.
    pub(super) fn skip(&self) {
        self.skip.notify_one();
    }

    /// Waits for further outcomes, after the first one was queued at `since`, until all of them should be written.
    pub(super) async fn pause(&self, since: Instant) {
        if !self.pace.lock().is_worthwhile() {
            return;
        }
        tokio::select! {
            biased;
            () = self.skip.notified() => {}
            () = time::sleep_until((since + self.longest).into()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace_of(gap: Duration) -> Pace {
        let start = Instant::now();
        let mut pace = Pace { last: start, mean_gap: LONGEST_GAP };
        (1..100).for_each(|i| pace.arrived(start + gap * i));
        pace
    }

    #[test]
    fn outcomes_that_come_fast_wait_for_each_other_and_those_that_come_slowly_do_not() {
        assert!(pace_of(Duration::from_millis(1)).is_worthwhile());
        assert!(!pace_of(Duration::from_millis(3)).is_worthwhile());
    }

    #[test]
    fn after_a_pause_the_first_outcomes_do_not_wait() {
        let mut pace = pace_of(Duration::from_millis(1));
        pace.arrived(pace.last + Duration::from_secs(60));
        assert!(!pace.is_worthwhile());
    }

    #[tokio::test]
    async fn skip_ends_the_wait() {
        // The commit delay is longer than the test, so that only `skip` can end it.
        let delay = CommitDelay::new(Duration::from_secs(60));
        delay.pace.lock().mean_gap = Duration::ZERO;
        let pause = delay.pause(Instant::now());
        tokio::pin!(pause);
        assert!(futures::poll!(&mut pause).is_pending());
        delay.skip();
        assert!(futures::poll!(&mut pause).is_ready());
    }
}
