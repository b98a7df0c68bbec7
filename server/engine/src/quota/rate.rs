//! A rate limiter in units per second, such as jobs or bytes. A request may need more units than one second allows: it
//! passes if the burst is not used up, and the excess becomes debt. So large requests pass, and the average rate still
//! holds.
//!
//! The generic cell rate algorithm stores one number: the time at which the debt is paid. The crate `governor` refuses
//! each request that is larger than the burst. So its burst would have to be as large as the largest request, even at a
//! low rate.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Maximum burst: as many units as the rate allows in this time.
const BURST: Duration = Duration::from_secs(1);

/// A lock-free rate limiter.
#[derive(Debug)]
pub(super) struct Rate {
    per_second: f64,
    since: Instant,
    /// Time at which the debt is paid, in nanoseconds after `since`.
    until: AtomicU64,
}

impl Rate {
    pub(super) fn new(per_second: u64) -> Self {
        Self { per_second: per_second.max(1) as f64, since: Instant::now(), until: AtomicU64::new(0) }
    }

    /// Takes units, or fails with the time until units are available.
    pub(super) fn take(&self, units: usize) -> Result<(), Duration> {
        self.take_at(units, Instant::now())
    }

    fn take_at(&self, units: usize, now: Instant) -> Result<(), Duration> {
        let now = nanos(now.saturating_duration_since(self.since));
        let cost = self.cost(units);
        let burst = nanos(BURST);
        let taken = self.until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
            // Units are available until the burst is used up. The last request may exceed the burst.
            (until < now.saturating_add(burst)).then(|| until.max(now).saturating_add(cost))
        });
        taken.map(drop).map_err(|until| Duration::from_nanos((until - now).saturating_sub(burst).max(1)))
    }

    /// Takes units even if none are available, which increases the debt.
    pub(super) fn force_take(&self, units: usize) {
        let now = nanos(self.since.elapsed());
        let add = |until: u64| Some(until.max(now).saturating_add(self.cost(units)));
        // `fetch_update` never fails, because `add` always returns `Some`.
        let _ = self.until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    fn cost(&self, units: usize) -> u64 {
        nanos(Duration::try_from_secs_f64(units as f64 / self.per_second).unwrap_or(Duration::MAX))
    }

    /// Returns the time until units are available, or `None` if they are available now. Takes nothing.
    pub(super) fn wait_time(&self) -> Option<Duration> {
        let now = nanos(self.since.elapsed());
        let over = self.until.load(Ordering::Relaxed).checked_sub(now.saturating_add(nanos(BURST)))?;
        Some(Duration::from_nanos(over.max(1)))
    }

    /// Whether the limiter has no debt, like a new one.
    pub(super) fn is_at_rest(&self) -> bool {
        self.until.load(Ordering::Relaxed) <= nanos(self.since.elapsed())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_one_second_passes_and_then_the_rate_holds() {
        let rate = Rate::new(10);
        let at = |ms| rate.since + Duration::from_millis(ms);
        for _ in 0..10 {
            assert_eq!(rate.take_at(1, at(0)), Ok(()));
        }
        let wait = rate.take_at(1, at(0)).unwrap_err();
        assert!(wait <= Duration::from_millis(1), "{wait:?}");
        assert_eq!(rate.take_at(1, at(1)), Ok(()));
        assert_eq!(rate.take_at(1, at(1)), Err(Duration::from_millis(99)));
        // However long the limiter was idle, at most the units of one second are available.
        let taken = (0..100).take_while(|_| rate.take_at(1, at(60_000)).is_ok()).count();
        assert_eq!(taken, 10);
    }

    #[test]
    fn a_request_larger_than_one_second_of_the_rate_passes_once_and_is_owed() {
        let rate = Rate::new(100);
        let at = |ms| rate.since + Duration::from_millis(ms);
        assert_eq!(rate.take_at(1_000, at(0)), Ok(()));
        assert_eq!(rate.take_at(1, at(0)), Err(Duration::from_secs(9)));
        assert_eq!(rate.take_at(1, at(8_999)), Err(Duration::from_millis(1)));
        assert_eq!(rate.take_at(1, at(9_001)), Ok(()));
    }

    #[test]
    fn units_taken_by_force_are_owed() {
        let rate = Rate::new(100);
        rate.force_take(1_000);
        rate.force_take(1_000);
        let wait = rate.take(1).unwrap_err();
        assert!((Duration::from_secs(18)..Duration::from_secs(20)).contains(&wait), "{wait:?}");
    }

    #[test]
    fn numbers_that_are_too_large_stay_in_bounds() {
        let rate = Rate::new(1);
        assert_eq!(rate.take(usize::MAX), Ok(()));
        assert!(rate.take(1).unwrap_err() > Duration::from_secs(1 << 30));
        assert!(!rate.is_at_rest());
        assert_eq!(Rate::new(u64::MAX).take(usize::MAX), Ok(()));
    }
}
