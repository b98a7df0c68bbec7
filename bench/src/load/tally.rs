//! The state that producers and workers of a trial share: a clock, the counts, the latencies, and the capacity of a
//! closed loop.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use howdah_client::proto::{EnqueuedJob, LeasedJob, SettleResult, SettleStatus};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    ledger::{Faults, Ledger},
    slowest::{Slow, Slowest},
    stamp::{self, WAITING},
};
use crate::error::{Error, Result};

/// Latencies in microseconds, to three digits.
pub(crate) type Micros = Histogram<u64>;

/// The longest latency that is recorded: ten minutes.
const LONGEST: u64 = 600_000_000;
/// If no job is settled for this long, the missing ones will not come.
const STALLED: Duration = Duration::from_secs(60);

/// Shared by all tasks of a trial.
#[derive(Debug)]
pub(crate) struct Tally {
    clock: Instant,
    ledger: Ledger,
    payload: usize,
    latencies: Mutex<Micros>,
    /// From when a job was due to the answer of the call that enqueued it.
    answers: Mutex<Micros>,
    /// From when a job was due to when its call began: the caller's own delay.
    delays: Mutex<Micros>,
    /// If somebody asked for them.
    slowest: Mutex<Option<Slowest>>,
    /// Jobs due in this time count for the latencies, in nanoseconds of the clock.
    from: AtomicU64,
    until: AtomicU64,
    enqueued: AtomicU64,
    settled: AtomicU64,
    /// When the last job was settled.
    settled_at: AtomicU64,
    progress: Notify,
    /// In a closed loop, a permit for each job that may be enqueued.
    pub(super) room: Semaphore,
    failure: Mutex<Option<Error>>,
    /// Cancelled by the first failure of any task.
    pub(super) failed: CancellationToken,
}

impl Tally {
    pub(super) fn new(payload: usize) -> Result<Self> {
        let latencies =
            || Micros::new_with_bounds(1, LONGEST, 3).map_err(|error| Error::Usage(error.to_string())).map(Mutex::new);
        Ok(Self {
            clock: Instant::now(),
            ledger: Ledger::default(),
            payload,
            latencies: latencies()?,
            answers: latencies()?,
            delays: latencies()?,
            slowest: Mutex::default(),
            from: AtomicU64::new(0),
            until: AtomicU64::new(u64::MAX),
            enqueued: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            settled_at: AtomicU64::new(0),
            progress: Notify::new(),
            room: Semaphore::new(0),
            failure: Mutex::default(),
            failed: CancellationToken::new(),
        })
    }

    /// Nanoseconds of the trial's clock.
    pub(super) fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Latencies of jobs that are due from now on count; earlier ones were the warm-up.
    pub(super) fn count_from_now(&self) {
        self.from.store(self.now(), Relaxed);
    }

    /// Latencies of jobs that are due later do not count.
    pub(super) fn count_until_now(&self) {
        self.until.store(self.now(), Relaxed);
    }

    /// The broker stored these jobs.
    pub(super) fn enqueued(&self, jobs: &[EnqueuedJob]) {
        self.enqueued_ids(jobs.iter().map(|job| job.id));
    }

    /// The broker stored jobs with these ids.
    pub(super) fn enqueued_ids(&self, ids: impl Iterator<Item = i64>) {
        let new = self.ledger.enqueued(ids);
        self.enqueued.fetch_add(new, Relaxed);
    }

    /// The call begins that enqueues a job due at that time.
    pub(super) fn called(&self, due: u64) {
        let (from, until) = (self.from.load(Relaxed), self.until.load(Relaxed));
        if (from..=until).contains(&due) {
            self.delays.lock().saturating_record((self.now().saturating_sub(due) / 1_000).max(1));
        }
    }

    /// The call that enqueued a job due at that time is answered.
    pub(super) fn answered(&self, due: u64) {
        let (from, until) = (self.from.load(Relaxed), self.until.load(Relaxed));
        if (from..=until).contains(&due) {
            let now = self.now();
            self.answers.lock().saturating_record((now.saturating_sub(due) / 1_000).max(1));
            if let Some(slowest) = &mut *self.slowest.lock() {
                slowest.answered(due, now);
            }
        }
    }

    /// These jobs were enqueued by other means.
    pub(super) fn expect(&self, ids: std::ops::RangeInclusive<i64>) {
        self.ledger.enqueued(ids);
    }

    /// A message with jobs has come: their handlers start now.
    pub(super) fn entered(&self, jobs: &[LeasedJob]) {
        self.entered_each(jobs.iter().map(|job| (job.id, job.payload.as_ref())));
    }

    /// The same, job by job.
    pub(super) fn entered_each<'a>(&self, jobs: impl Iterator<Item = (i64, &'a [u8])>) {
        let now = self.now();
        let (from, until) = (self.from.load(Relaxed), self.until.load(Relaxed));
        // Jobs of one request have one stamp: equal ones are recorded together.
        let (mut run, mut runs) = ((0, 0), Vec::new());
        let mut slowest = self.slowest.lock();
        self.ledger.delivered(jobs.map(|(id, payload)| {
            let due = stamp::due(payload, self.payload);
            let due_at = due.map(|due| if due == WAITING { from } else { due });
            if let Some(due) = due_at.filter(|due| (from..=until).contains(due)) {
                if run.0 != due && run.1 > 0 {
                    runs.push(std::mem::take(&mut run));
                }
                run = (due, run.1 + 1);
                if let Some(slowest) = &mut *slowest {
                    slowest.picked_up(id, due, now);
                }
            }
            (id, due.is_some())
        }));
        runs.extend((run.1 > 0).then_some(run));
        let mut latencies = self.latencies.lock();
        for (due, jobs) in runs {
            latencies.saturating_record_n((now.saturating_sub(due) / 1_000).max(1), jobs);
        }
    }

    /// From now on the slowest jobs are kept.
    pub(super) fn keep_slowest(&self) {
        *self.slowest.lock() = Some(Slowest::new(self.clock.elapsed()));
    }

    /// The slowest first; none unless they were kept.
    pub(super) fn take_slowest(&self) -> Vec<Slow> {
        self.slowest.lock().take().map(Slowest::into_jobs).unwrap_or_default()
    }

    /// The broker answered these outcomes.
    pub(super) fn settled(&self, results: &[SettleResult]) {
        let good = results.iter().filter(|result| result.status() == SettleStatus::Ok);
        self.settled_ids(good.map(|result| result.id));
    }

    /// The broker confirmed these jobs.
    pub(super) fn settled_ids(&self, ids: impl Iterator<Item = i64>) {
        let new = self.ledger.settled(ids);
        self.settled.fetch_add(new, Relaxed);
        self.settled_at.store(self.now(), Relaxed);
        self.room.add_permits(new as usize);
        self.progress.notify_one();
    }

    /// How many jobs are settled.
    pub(crate) fn settled_count(&self) -> u64 {
        self.settled.load(Relaxed)
    }

    /// How many enqueues are answered.
    pub(super) fn enqueued_count(&self) -> u64 {
        self.enqueued.load(Relaxed)
    }

    /// When the last one was settled.
    pub(super) fn settled_at(&self) -> Instant {
        self.clock + Duration::from_nanos(self.settled_at.load(Relaxed))
    }

    /// Waits until this many jobs are settled. Gives up if none is for long; the count then shows the missing ones.
    pub(super) async fn until_settled(&self, jobs: u64) {
        while self.settled_count() < jobs {
            if timeout(STALLED, self.progress.notified()).await.is_err() {
                return;
            }
        }
    }

    /// A task failed: all others end too.
    pub(super) fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.failed.cancel();
    }

    /// Why a task failed.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    /// Counts the errors; see [`Ledger::faults`].
    pub(super) fn faults(&self, waiting: u64) -> Faults {
        self.ledger.faults(waiting)
    }

    /// The latencies since the last call.
    pub(super) fn take_latencies(&self) -> Micros {
        take(&self.latencies)
    }

    /// The delays of callers since the last call.
    pub(super) fn take_delays(&self) -> Micros {
        take(&self.delays)
    }

    /// The times of answers since the last call.
    pub(super) fn take_answers(&self) -> Micros {
        take(&self.answers)
    }
}

fn take(latencies: &Mutex<Micros>) -> Micros {
    let mut latencies = latencies.lock();
    let taken = latencies.clone();
    latencies.reset();
    taken
}
