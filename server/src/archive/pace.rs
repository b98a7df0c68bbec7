//! How fast a run goes. It rests between its steps, so that brokers have the machine and the database; it rests less if the day
//! would not be archived in time otherwise, and not at all while the database has little else to do.

use std::time::{Duration, Instant};

use crate::store::{ArchiveLoad, Store};

/// A day that is over should be archived so long after its end: before the next one is over, with time to spare.
const WITHIN: Duration = Duration::from_secs(20 * 3_600);
/// How often the load of the database is looked at.
const LOOK: Duration = Duration::from_secs(3);
/// The database has little else to do if all programs together change at most so many rows in a second.
const IDLE_ROWS: f64 = 1_000.0;
/// The longest rest: a run has to say now and then that it goes on.
const LONGEST: Duration = Duration::from_secs(15);

/// What a run goes by.
#[derive(Debug)]
struct Share {
    /// Of one processor, while the database is busy; 1: all that there is.
    given: f64,
    /// Work that was done: seconds of processors and of the connection, one beside the other.
    worked: f64,
    /// Jobs that were written by it.
    done: f64,
    load: Load,
}

/// What the database said last.
#[derive(Debug, Default)]
struct Load {
    is_idle: bool,
    /// Jobs of the day, about.
    jobs: f64,
    /// Until the day should be archived.
    seconds_left: Option<f64>,
}

impl Share {
    /// The share that the run takes now.
    fn now(&self) -> f64 {
        if self.load.is_idle { 1.0 } else { self.given.max(self.needed()).min(1.0) }
    }

    /// What it needs to be done in time, if each job costs as much as those that were written.
    fn needed(&self) -> f64 {
        match self.load.seconds_left {
            Some(left) if left <= 0.0 => 1.0,
            Some(left) if self.done > 0.0 => self.worked / self.done * (self.load.jobs - self.done).max(0.0) / left,
            _ => 0.0,
        }
    }

    /// How long a step and its rest take together, if the step was so much work.
    fn spread(&self, work: Duration) -> Duration {
        work.div_f64(self.now().max(0.001))
    }
}

/// The pace of one run.
pub(super) struct Pace<'a> {
    store: &'a Store,
    day: &'a str,
    share: Share,
    looked: Option<(Instant, i64)>,
    /// When the step began that is under way.
    begun: Instant,
}

impl<'a> Pace<'a> {
    pub(super) fn new(store: &'a Store, day: &'a str, share: f64) -> Self {
        let share = Share { given: share, worked: 0.0, done: 0.0, load: Load::default() };
        Self { store, day, share, looked: None, begun: Instant::now() }
    }

    /// Whether it rests between its steps: then steps should be small.
    pub(super) fn rests(&self) -> bool {
        self.share.now() < 1.0
    }

    /// The share of a processor that it takes now.
    pub(super) fn share(&self) -> f64 {
        self.share.now()
    }

    /// A step is done that was so much work, and has written so many jobs.
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

    /// A step is done that has written nothing, and took all the time since the last rest.
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
            // The next step says what is wrong, if it is still so.
            Err(error) => tracing::debug!(%error, day = self.day, "the load of the database is not known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a million jobs 100,000 are written, in two seconds.
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
        // More jobs than were thought, and nothing known.
        let more = Share { done: 2_000_000.0, ..share(0.05, 1.0) };
        let nothing = Share { given: 0.05, worked: 0.0, done: 0.0, load: Load::default() };
        assert_eq!((more.now(), nothing.now()), (0.05, 0.05));
    }

    #[test]
    fn a_run_takes_what_there_is_while_the_database_is_idle() {
        let mut idle = share(0.05, 17.0);
        idle.load.is_idle = true;
        assert!((idle.now() - 1.0).abs() < 1e-9);
    }
}
