//! Exponential backoff with jitter. Pauses double up to a maximum, and half of each pause is random. The jitter spreads the
//! retries of brokers that failed at the same time.

use std::time::Duration;

/// Exponential backoff for one series of attempts.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Starts with a pause of `first`; no pause exceeds `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, next: first, longest }
    }

    /// Duration of the next pause before jitter, which can only shorten it.
    pub(crate) fn next(&self) -> Duration {
        self.next
    }

    /// Waits before the next attempt.
    pub async fn pause(&mut self) {
        let pause = self.advance();
        tokio::time::sleep(pause).await;
    }

    /// Returns the next pause and does not wait, for callers that also wait for other events.
    pub(crate) fn advance(&mut self) -> Duration {
        let pause = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    /// Resets the backoff to the first pause, after an attempt has succeeded.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Returns a random duration between half of the pause and the whole pause.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + 0.5 * (f64::from(rand::random::<u32>()) / f64::from(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(50), ms(150));
        for longest in [50, 100, 150, 150] {
            assert_eq!(backoff.next(), ms(longest));
            let pause = backoff.advance();
            assert!(pause >= ms(longest) / 2 && pause <= ms(longest), "{pause:?}");
        }
        backoff.reset();
        assert_eq!(backoff.next(), ms(50));
    }
}
