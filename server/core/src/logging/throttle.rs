//! Rate limits for log lines about events that clients or databases can cause in large numbers.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Limits a log line to one per interval, and counts the events.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    last: Option<Instant>,
    times: u64,
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

impl Throttle {
    pub const fn new() -> Self {
        Self::every(Duration::from_secs(1))
    }

    pub const fn every(interval: Duration) -> Self {
        Self { interval, last: None, times: 0 }
    }

    /// Counts an event. If a log line is due, returns the number of events since the last line, including this one.
    pub fn count(&mut self) -> Option<u64> {
        self.times += 1;
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < self.interval) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

/// Limits log lines to one per minute for each kind of problem.
#[derive(Debug, Default)]
pub struct ThrottleByKind(Mutex<BTreeMap<String, Throttle>>);

/// Maximum number of kinds of problems in memory. When it is reached, all kinds are forgotten.
const MOST_KINDS: usize = 256;

impl ThrottleByKind {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Counts an event of this kind. If a log line is due, returns the number of events of the kind since the last
    /// line, including this one.
    pub fn count(&self, kind: &str) -> Option<u64> {
        let mut kinds = self.0.lock();
        if let Some(throttle) = kinds.get_mut(kind) {
            return throttle.count();
        }
        if kinds.len() >= MOST_KINDS {
            kinds.clear();
        }
        kinds.entry(kind.to_owned()).or_insert(Throttle::every(Duration::from_secs(60))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_a_second_that_says_how_many() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.count(), Some(1));
        assert!((0..100).all(|_| throttle.count().is_none()));
        throttle.last = throttle.last.and_then(|last| last.checked_sub(Duration::from_secs(1)));
        assert_eq!(throttle.count(), Some(101));
    }

    #[test]
    fn each_kind_of_complaint_is_one_line_a_minute() {
        let throttle = ThrottleByKind::new();
        assert_eq!([throttle.count("a"), throttle.count("b"), throttle.count("a")], [Some(1), Some(1), None]);
        let minute = Duration::from_secs(60);
        for throttle in throttle.0.lock().values_mut() {
            throttle.last = throttle.last.and_then(|last| last.checked_sub(minute));
        }
        assert_eq!([throttle.count("a"), throttle.count("b")], [Some(2), Some(1)]);
        assert!((0..1_000).all(|n| throttle.count(&n.to_string()) == Some(1)));
        assert!(throttle.0.lock().len() <= MOST_KINDS);
    }
}
