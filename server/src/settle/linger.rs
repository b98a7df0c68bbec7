//! Outcomes that come one by one are written together: a commit costs Postgres far more than an outcome. Nobody who works waits for
//! it: a worker's capacity is free as soon as its outcome has been read.
//!
//! Natural batching gathers only what comes during a commit. At a thousand jobs a second that is less than one outcome, so each
//! would be a commit of its own. If more are about to come, the first waits for them: as `commit_delay` of Postgres does, but on the
//! side where a statement is saved, too.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::{sync::Notify, time};

/// The longest mean gap at which the first waits for others.
const WORTH: Duration = Duration::from_millis(2);
/// The weight of the newest gap in the mean: 1/8.
const NEWEST: u32 = 8;
/// A longer gap says no more than this one: after a pause, a few outcomes come before anything waits.
const LONGEST_GAP: Duration = Duration::from_millis(20);

/// Decides when gathered outcomes are written.
pub(super) struct Linger {
    /// The longest wait.
    longest: Duration,
    pace: Mutex<Pace>,
    /// A caller waits for its answer, or a job for the end of another one.
    hurry: Notify,
}

/// How fast outcomes come.
struct Pace {
    last: Instant,
    mean_gap: Duration,
}

impl Pace {
    fn came(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.last).min(LONGEST_GAP);
        self.mean_gap = (self.mean_gap * (NEWEST - 1) + gap) / NEWEST;
        self.last = now;
    }

    /// Whether another one comes while the first waits.
    fn pays(&self) -> bool {
        self.mean_gap < WORTH
    }
}

impl Linger {
    pub(super) fn new(longest: Duration) -> Self {
        let pace = Pace { last: Instant::now(), mean_gap: LONGEST_GAP };
        Self { longest, pace: Mutex::new(pace), hurry: Notify::new() }
    }

    /// Outcomes have come.
    pub(super) fn came(&self) {
        self.pace.lock().came(Instant::now());
    }

    /// What has gathered is written now.
    pub(super) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Waits until what has gathered since then shall be written.
    pub(super) async fn pause(&self, since: Instant) {
        if !self.pace.lock().pays() {
            return;
        }
        tokio::select! {
            biased;
            () = self.hurry.notified() => {}
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
        (1..100).for_each(|i| pace.came(start + gap * i));
        pace
    }

    #[test]
    fn outcomes_that_come_fast_wait_for_each_other_and_those_that_come_slowly_do_not() {
        assert!(pace_of(Duration::from_millis(1)).pays());
        assert!(!pace_of(Duration::from_millis(3)).pays());
    }

    #[test]
    fn after_a_pause_the_first_outcomes_do_not_wait() {
        let mut pace = pace_of(Duration::from_millis(1));
        pace.came(pace.last + Duration::from_secs(60));
        assert!(!pace.pays());
    }

    #[tokio::test]
    async fn whoever_is_in_a_hurry_ends_the_wait() {
        // Longer than the test.
        let linger = Linger::new(Duration::from_secs(60));
        linger.pace.lock().mean_gap = Duration::ZERO;
        let pause = linger.pause(Instant::now());
        tokio::pin!(pause);
        assert!(futures::poll!(&mut pause).is_pending());
        linger.hurry();
        assert!(futures::poll!(&mut pause).is_ready());
    }
}
