//! Throttles a run of the archive. The run rests between its steps, so that jobs get the processor and the database
//! first. It rests less if the day would otherwise be archived too late, and not at all while the database is idle.

use std::time::{Duration, Instant};

use crate::store::{ArchiveLoad, Store};

/// Time after the end of a day within which its jobs should be archived. The time is shorter than a day, so that days
/// do not queue up.
const WITHIN: Duration = Duration::from_secs(20 * 3_600);
/// Interval at which the run measures the load of the database.
const LOOK: Duration = Duration::from_secs(3);
/// The database counts as idle if all programs together change at most this many rows per second.
const IDLE_ROWS: f64 = 1_000.0;
/// Maximum rest between two steps. Longer rests would delay the heartbeats by which a run keeps its day.
const LONGEST: Duration = Duration::from_secs(15);

/// Values from which the allowed share of a processor is computed.
#[derive(Debug)]
struct Share {
    /// The setting `archive_share`: share of a processor while the database is busy. 1 means no limit.
    given: f64,
    /// Work of the run so far, in seconds of processor and connection time combined.
    worked: f64,
    /// Number of jobs that the run has written so far.
    done: f64,
    load: Load,
}

/// Last known load of the database.
#[derive(Debug, Default)]
struct Load {
    is_idle: bool,
    /// Approximate number of jobs of the day to archive.
    jobs: f64,
    /// Seconds until the archiving of the day is late; `None` before the first query.
    seconds_left: Option<f64>,
}

impl Share {
    /// Returns the share of a processor that the run may use now, at most 1.
    fn now(&self) -> f64 {
        if self.load.is_idle { 1.0 } else { self.given.max(self.needed()).min(1.0) }
    }

    /// Returns the share of a processor that is needed to archive the day in time. Assumes that each remaining job
    /// costs as much as the jobs so far.
    fn needed(&self) -> f64 {
        match self.load.seconds_left {
            Some(left) if left <= 0.0 => 1.0,
            Some(left) if self.done > 0.0 => self.worked / self.done * (self.load.jobs - self.done).max(0.0) / left,
            _ => 0.0,
        }
    }

    /// Returns the total time of a step and the rest after it, for this amount of work in the step.
    fn spread(&self, work: Duration) -> Duration {
        work.div_f64(self.now().max(0.001))
    }
}

/// Throttle of one archive run.
pub(super) struct Pace<'a> {
    store: &'a Store,
    day: &'a str,
    share: Share,
    looked: Option<(Instant, i64)>,
    /// Start of the current step.
    begun: Instant,
}

impl<'a> Pace<'a> {
    pub(super) fn new(store: &'a Store, day: &'a str, share: f64) -> Self {
        let share = Share { given: share, worked: 0.0, done: 0.0, load: Load::default() };
        Self { store, day, share, looked: None, begun: Instant::now() }
    }

    /// Whether the run rests between its steps, so that steps should be small.
    pub(super) fn rests(&self) -> bool {
        self.share.now() < 1.0
    }

    /// Returns the share of a processor that the run may use now, at most 1.
    pub(super) fn share(&self) -> f64 {
        self.share.now()
    }

    /// Rests after a step. `work` is the processor and connection time of the step, `jobs` the number of jobs that it
    /// wrote.
    pub(super) async fn rest(&mut self, work: Duration, jobs: usize) {
        if self.share.given >= 1.0 {
            return;
        }
        self.share.worked += work.as_secs_f64();
        self.share.done += jobs as f64;
        self.look().await;
        if self.rests() {
            let until = self.begun + self.share.spread(work).min(LONGEST);
            tokio::time::sleep_until(until.into()).await;
        }
        self.begun = Instant::now();
    }

    /// Rests after a step that wrote no jobs. All time since the last rest counts as work.
    pub(super) async fn rest_after_step(&mut self) {
        self.rest(self.begun.elapsed(), 0).await;
    }

    async fn look(&mut self) {
        if self.looked.is_some_and(|(at, _)| at.elapsed() < LOOK) {
            return;
        }
        match self.store.archive_load(self.day, WITHIN).await {
            Ok(ArchiveLoad { changed_rows, jobs, seconds_left }) => {
                let is_idle = self.looked.is_some_and(|(at, before)| {
                    (changed_rows - before) as f64 <= IDLE_ROWS * at.elapsed().as_secs_f64()
                });
                self.share.load = Load { is_idle, jobs, seconds_left: Some(seconds_left) };
                self.looked = Some((Instant::now(), changed_rows));
            }
            // Only logged: if the database stays unreachable, the next step of the run fails.
            Err(error) => tracing::debug!(%error, day = self.day, "cannot read the load of the database"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that has written 100,000 of a million jobs with two seconds of work.
    fn share(given: f64, hours_left: f64) -> Share {
        let load = Load { is_idle: false, jobs: 1_000_000.0, seconds_left: Some(hours_left * 3_600.0) };
        Share { given, worked: 2.0, done: 100_000.0, load }
    }

    #[test]
    fn a_run_rests_in_proportion_to_its_work() {
        let work = Duration::from_millis(10);
        assert_eq!(share(0.05, 17.0).spread(work), Duration::from_millis(200));
        assert_eq!(share(0.5, 17.0).spread(work), Duration::from_millis(20));
    }

    #[test]
    fn a_day_that_would_be_late_gets_the_share_that_it_needs() {
        // 18 seconds of work are left.
        for (hours_left, expected) in [(18.0, 0.05), (0.05, 0.1), (0.01, 0.5), (0.001, 1.0), (0.0, 1.0), (-24.0, 1.0)] {
            let now = share(0.05, hours_left).now();
            assert!((now - expected).abs() < 1e-9, "{hours_left}: {now}");
        }
        // More jobs than estimated, and an unknown load.
        let more = Share { done: 2_000_000.0, ..share(0.05, 1.0) };
        let nothing = Share { given: 0.05, worked: 0.0, done: 0.0, load: Load::default() };
        assert_eq!((more.now(), nothing.now()), (0.05, 0.05));
    }

    #[test]
    fn a_run_works_without_pauses_while_the_database_is_idle() {
        let mut idle = share(0.05, 17.0);
        idle.load.is_idle = true;
        assert!((idle.now() - 1.0).abs() < 1e-9);
    }
}
