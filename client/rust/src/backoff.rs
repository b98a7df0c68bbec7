//! Exponential backoff with jitter, for reconnects and repeated calls.

use std::time::Duration;

/// Upper bound of the first pause. The random part only shortens a pause.
const FIRST: Duration = Duration::from_millis(50);
/// Upper bound of every pause.
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double from 50 ms to 5 s. Half of each pause is random, so that clients that lost their connection at the same
/// time do not reconnect at the same time.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the pause before the next try, and counts a failure.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(rand::random_range(0.5..1.0))
    }

    /// Resets the pause to the first one, after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_50_ms_to_5_s_and_start_again_after_a_reset() {
        let mut backoff = Backoff::default();
        for bound in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let (wait, bound) = (backoff.next(), Duration::from_millis(bound));
            assert!((bound / 2..bound).contains(&wait), "{wait:?} of {bound:?}");
        }
        backoff.failures = u32::MAX;
        assert!(backoff.next() < LONGEST);
        backoff.reset();
        assert!(backoff.next() < FIRST);
    }
}
