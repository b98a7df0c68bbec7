//! Compares the database's clock with this broker's clocks, and decides whether the database's clock is reliable. Does
//! no I/O.
//!
//! The broker has two clocks. The monotonic clock measures how much time passes, and so reveals steps of the database's
//! clock. The wall clock shows whether the database's clock is right. If the broker and the database share a machine,
//! both wall clocks are the same, but steps are still detected.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Maximum difference between the database's clock and this broker's wall clock.
pub(crate) const MOST_APART: Duration = Duration::from_secs(300);
/// Minimum change of the database's clock that counts as a step, in ms. Gradual corrections by NTP are smaller.
const STEP_MS: i64 = 2_000;
/// Minimum time between two warnings about the clock.
const AGAIN: Duration = Duration::from_secs(600);
/// Maximum age of the last reading. If it is older, the database's clock counts as unreliable.
const FRESH: Duration = Duration::from_secs(60);

/// A reading of the database's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Time that the database's clock showed, at a moment between `asked` and `answered`.
    pub(super) database: SystemTime,
    /// Time at which the query was sent.
    pub(super) asked: Instant,
    /// Time at which the answer arrived.
    pub(super) answered: Instant,
    /// This broker's wall clock at `answered`.
    pub(super) own: SystemTime,
}

/// State of comparing the clocks, after all readings so far.
#[derive(Debug, Default)]
pub(crate) struct ClockWatch {
    last: Option<Reading>,
    /// Start of the period in which the clocks have agreed without a step.
    agreed_since: Option<Instant>,
    /// Whether the clocks have disagreed and have not yet agreed again for the settling time.
    doubtful: bool,
    warned: Option<Instant>,
}

/// Result of one reading of the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    /// Time in ms by which the database's clock is ahead of this broker's wall clock.
    pub(super) ahead_ms: i64,
    /// Minimum step in ms of the database's clock since the last reading; negative if it went back.
    pub(super) step_ms: i64,
    /// Log line that this reading causes.
    pub(super) log_line: LogLine,
}

/// Log line that a reading of the clock causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogLine {
    Nothing,
    /// Warning: the database's clock was set forward or back.
    Step,
    /// Warning: the clocks differ by more than `MOST_APART`.
    Apart,
    /// The clocks have agreed again for the settling time.
    Agree,
}

impl ClockWatch {
    /// Processes a reading of the database's clock. The clock is reliable after the clocks have agreed for `settling`.
    pub(super) fn observe(&mut self, reading: Reading, settling: Duration) -> Observation {
        // If two readings overlap in time, only the first is checked for a step.
        let overlaps = self.last.is_some_and(|last| reading.asked < last.answered);
        let step_ms = self.last.filter(|_| !overlaps).map_or(0, |last| step_between(&last, &reading));
        let ahead_ms = ms_between(reading.own, reading.database);
        let apart = ahead_ms.unsigned_abs() > MOST_APART.as_millis() as u64;
        let now = reading.answered;
        if !overlaps {
            self.last = Some(reading);
        }
        if apart {
            self.agreed_since = None;
        } else if step_ms != 0 || self.agreed_since.is_none() {
            self.agreed_since = Some(now);
        }
        self.doubtful |= apart || step_ms != 0;
        let settled = self.is_settled(now, settling);
        let may_warn = self.warned.is_none_or(|warned| now.duration_since(warned) >= AGAIN);
        let log_line = if step_ms != 0 && may_warn {
            LogLine::Step
        } else if apart && may_warn {
            LogLine::Apart
        } else if self.doubtful && settled {
            LogLine::Agree
        } else {
            LogLine::Nothing
        };
        match log_line {
            LogLine::Step | LogLine::Apart => self.warned = Some(now),
            LogLine::Agree => (self.warned, self.doubtful) = (None, false),
            LogLine::Nothing => {}
        }
        Observation { ahead_ms, step_ms, log_line }
    }

    /// Returns whether the clocks have agreed for the time `settling`, and the last reading is recent.
    pub(super) fn is_settled(&self, now: Instant, settling: Duration) -> bool {
        let fresh = self.last.is_some_and(|last| now.duration_since(last.answered) < FRESH);
        fresh && self.agreed_since.is_some_and(|since| now.duration_since(since) >= settling)
    }

    /// Returns the time until the clocks will have agreed for `settling`; `None` while they disagree.
    pub(super) fn settles_in(&self, now: Instant, settling: Duration) -> Option<Duration> {
        Some(settling.saturating_sub(now.duration_since(self.agreed_since?)))
    }

    /// Returns whether the clocks have disagreed and have not yet agreed again for the settling time.
    pub(super) const fn is_doubtful(&self) -> bool {
        self.doubtful
    }
}

/// Returns the smallest step of the database's clock that explains two readings. Returns 0 if the durations of the
/// queries explain the difference.
fn step_between(before: &Reading, after: &Reading) -> i64 {
    let passed = ms_between(before.database, after.database);
    let most = after.answered.duration_since(before.asked).as_millis() as i64;
    let least = after.asked.duration_since(before.answered).as_millis() as i64;
    match (passed - most, passed - least) {
        (forward, _) if forward > STEP_MS => forward,
        (_, back) if back < -STEP_MS => back,
        _ => 0,
    }
}

/// Returns the time from `from` to `to` in ms.
fn ms_between(from: SystemTime, to: SystemTime) -> i64 {
    match to.duration_since(from) {
        Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::{LogLine::*, *};

    const SETTLING: Duration = Duration::from_secs(600);
    const DAY: i64 = 86_400;

    /// A clock watch that is read once a second. The test sets by how many seconds the clocks are off.
    struct Readings {
        watch: ClockWatch,
        begin: Instant,
        second: u64,
    }

    impl Readings {
        fn new() -> Self {
            Self { watch: ClockWatch::default(), begin: Instant::now(), second: 0 }
        }

        fn at(seconds: i64) -> SystemTime {
            UNIX_EPOCH + Duration::from_secs(1_800_000_000) + Duration::from_secs(seconds.unsigned_abs())
        }

        fn read(&mut self, database: i64, own: i64, took: Duration) -> Observation {
            let passed = self.second as i64;
            let asked = self.begin + Duration::from_secs(self.second);
            let reading = Reading {
                database: Self::at(passed + 100 * DAY + database),
                asked,
                answered: asked + took,
                own: Self::at(passed + 100 * DAY + own) + took,
            };
            self.second += 1;
            self.watch.observe(reading, SETTLING)
        }

        /// Reads the clocks `times` times and returns the log lines.
        fn run(&mut self, times: u64, database: i64, own: i64) -> Vec<LogLine> {
            let said = (0..times).map(|_| self.read(database, own, Duration::from_millis(3)).log_line);
            said.filter(|log_line| *log_line != Nothing).collect()
        }

        fn is_settled(&self) -> bool {
            self.watch.is_settled(self.begin + Duration::from_secs(self.second), SETTLING)
        }
    }

    #[test]
    fn clocks_are_relied_on_after_they_have_agreed_for_ten_minutes() {
        let mut clocks = Readings::new();
        assert_eq!((clocks.run(599, 0, 0), clocks.is_settled()), (vec![], false));
        assert_eq!((clocks.run(2, 0, 0), clocks.is_settled()), (vec![], true));
        // Without a recent reading, the clocks are not reliable.
        clocks.second += 120;
        assert!(!clocks.is_settled());
    }

    #[test]
    fn a_clock_that_is_ahead_when_the_broker_starts_is_not_relied_on_however_long_it_is() {
        let mut clocks = Readings::new();
        assert_eq!((clocks.run(1_300, 40 * DAY, 0), clocks.is_settled()), (vec![Apart, Apart, Apart], false));
        // The clock is right again, and agrees for ten minutes.
        let observation = clocks.read(0, 0, Duration::from_millis(3));
        assert!(observation.step_ms < -40 * DAY * 1_000 + 2_000, "{observation:?}");
        assert_eq!((clocks.run(590, 0, 0).contains(&Agree), clocks.is_settled()), (false, false));
        assert_eq!((clocks.run(20, 0, 0), clocks.is_settled()), (vec![Agree], true));
        assert!(!clocks.watch.is_doubtful());
    }

    #[test]
    fn a_step_is_seen_where_both_clocks_are_those_of_one_machine() {
        let mut clocks = Readings::new();
        clocks.run(700, 0, 0);
        assert_eq!(clocks.run(45, 40 * DAY, 40 * DAY), [Step]);
        assert!(!clocks.is_settled() && clocks.watch.is_doubtful());
        let back = clocks.read(0, 0, Duration::from_millis(3));
        assert!(back.step_ms < -40 * DAY * 1_000 + 2_000);
        assert!(!clocks.is_settled());
        clocks.run(601, 0, 0);
        assert!(clocks.is_settled());
    }

    #[test]
    fn a_clock_ten_minutes_back_is_a_step_and_a_slow_answer_or_an_ntp_correction_is_not() {
        let mut clocks = Readings::new();
        clocks.run(10, 0, 0);
        let observation = clocks.read(-600, 0, Duration::from_millis(3));
        assert!(
            (-600_000..-597_000).contains(&observation.step_ms) && observation.ahead_ms < -600_000,
            "{observation:?}"
        );
        let slow = clocks.read(-590, 0, Duration::from_secs(14));
        assert_eq!(slow.step_ms, 0);
        let mut clocks = Readings::new();
        for second in 0..1_000 {
            assert_eq!(clocks.read(second / 100, 0, Duration::from_millis(3)).step_ms, 0);
        }
    }

    #[test]
    fn a_few_minutes_apart_are_agreement_and_six_are_not() {
        for (apart, agrees) in [(-240, true), (240, true), (360, false), (-360, false)] {
            let mut clocks = Readings::new();
            clocks.run(700, apart, 0);
            assert_eq!(clocks.is_settled(), agrees, "{apart}");
        }
    }
}
