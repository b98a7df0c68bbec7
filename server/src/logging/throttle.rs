//! One log line a second for an event that others can cause as often as they like.

use std::time::{Duration, Instant};

/// Limits a log line to one per second.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    last: Option<Instant>,
    times: u64,
}

impl Throttle {
    /// Nothing has happened yet.
    pub(crate) const fn new() -> Self {
        Self { last: None, times: 0 }
    }

    /// If a line is due: how often the event has happened since the last one, this time included.
    pub(crate) fn ready(&mut self) -> Option<u64> {
        self.times += 1;
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < Duration::from_secs(1)) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_a_second_that_says_how_many() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.ready(), Some(1));
        assert!((0..100).all(|_| throttle.ready().is_none()));
        throttle.last = throttle.last.and_then(|last| last.checked_sub(Duration::from_secs(1)));
        assert_eq!(throttle.ready(), Some(101));
    }
}
