//! Pauses between attempts. They double each time, up to a bound, and half of each is random, so that brokers that
//! failed together do not try again together.

use std::time::Duration;

/// The pauses of one series of attempts.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// From `first` on, `longest` at most.
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, next: first, longest }
    }

    /// The longest that the next pause can be.
    pub(crate) fn next(&self) -> Duration {
        self.next
    }

    /// Waits before the next attempt.
    pub(crate) async fn pause(&mut self) {
        let pause = self.advance();
        tokio::time::sleep(pause).await;
    }

    /// The next pause, for those who wait for something else, too.
    pub(crate) fn advance(&mut self) -> Duration {
        let pause = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    /// An attempt has succeeded: the next series starts with the first pause.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Between half of a pause and all of it.
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
