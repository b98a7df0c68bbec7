//! Shared state of a trial's producers and workers: clock, counts, latencies, and capacity of the closed loop.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime},
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
    stamp::{self, WAITING},
};
use crate::error::{Error, Result};

/// Latencies in microseconds, to three significant digits.
pub(crate) type Micros = Histogram<u64>;

/// Maximum recorded latency in microseconds: ten minutes.
const LONGEST: u64 = 600_000_000;
/// Time without a settled job after which a trial stops waiting for the missing jobs.
const STALLED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Tally {
    clock: Instant,
    ledger: Ledger,
    payload: usize,
    /// Time from the due time of a job to the start of its handler.
    pub(crate) latencies: Latencies,
    /// Time from the due time of a job until the call that enqueued it was answered.
    pub(crate) answers: Latencies,
    /// Time from the due time of a job until its enqueue call began: the delay that the benchmark itself caused.
    pub(crate) delays: Latencies,
    /// Slowest jobs, if [`Tally::keep_slowest`] was called.
    slowest: Mutex<Option<Slowest>>,
    /// Only jobs due from this time until `until` count for the latencies. Nanoseconds of the clock.
    from: AtomicU64,
    until: AtomicU64,
    enqueued: AtomicU64,
    settled: AtomicU64,
    /// Time at which the last job was settled, in nanoseconds of the trial's clock.
    settled_at: AtomicU64,
    progress: Notify,
    /// Permits to enqueue further jobs in a closed loop.
    pub(super) room: Semaphore,
    failure: Mutex<Option<Error>>,
    /// Cancelled when the first task of the trial fails.
    pub(super) failed: CancellationToken,
}

impl Tally {
    pub(super) fn new(payload: usize) -> Result<Self> {
        Ok(Self {
            clock: Instant::now(),
            ledger: Ledger::default(),
            payload,
            latencies: Latencies::new()?,
            answers: Latencies::new()?,
            delays: Latencies::new()?,
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

    /// Nanoseconds since the start of the trial.
    pub(super) fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Starts to record latencies. Jobs due earlier belong to the warm-up and are not recorded.
    pub(super) fn count_from_now(&self) {
        self.from.store(self.now(), Relaxed);
    }

    /// Stops recording latencies of jobs that are due later.
    pub(super) fn count_until_now(&self) {
        self.until.store(self.now(), Relaxed);
    }

    /// Records jobs that the broker stored.
    pub(super) fn enqueued(&self, jobs: &[EnqueuedJob]) {
        self.enqueued_ids(jobs.iter().map(|job| job.id));
    }

    pub(super) fn enqueued_ids(&self, ids: impl Iterator<Item = i64>) {
        let new = self.ledger.enqueued(ids);
        self.enqueued.fetch_add(new, Relaxed);
    }

    /// Records the start of the call that enqueues a job due at `due`.
    pub(super) fn called(&self, due: u64) {
        let (from, until) = (self.from.load(Relaxed), self.until.load(Relaxed));
        if (from..=until).contains(&due) {
            self.delays.record(due, self.now(), 1);
        }
    }

    /// Records the answer to the call that enqueued a job due at `due`.
    pub(super) fn answered(&self, due: u64) {
        let (from, until) = (self.from.load(Relaxed), self.until.load(Relaxed));
        if (from..=until).contains(&due) {
            let now = self.now();
            self.answers.record(due, now, 1);
            if let Some(slowest) = &mut *self.slowest.lock() {
                slowest.answered(due, now);
            }
        }
    }

    /// Records ids of jobs that were stored by SQL and not by a producer, so that they count as expected.
    pub(crate) fn expect(&self, ids: std::ops::RangeInclusive<i64>) {
        self.ledger.enqueued(ids);
    }

    /// Records the jobs of a message that a worker received. Their handlers start now.
    pub(super) fn entered(&self, jobs: &[LeasedJob]) {
        self.entered_each(jobs.iter().map(|job| (job.id, job.payload.as_ref())));
    }

    /// Records jobs whose handlers start now, given as pairs of id and payload.
    pub(super) fn entered_each<'a>(&self, jobs: impl Iterator<Item = (i64, &'a [u8])>) {
        let now = self.now();
        let (from, until) = (self.from.load(Relaxed), self.until.load(Relaxed));
        // Jobs of one request have the same due time, so record the latencies of equal due times together.
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
        runs.into_iter().for_each(|(due, jobs)| self.latencies.record(due, now, jobs));
    }

    /// From now on, keeps the slowest jobs of the trial.
    pub(crate) fn keep_slowest(&self) {
        *self.slowest.lock() = Some(Slowest::new(self.clock.elapsed()));
    }

    /// Removes and returns the kept slowest jobs, slowest first.
    pub(crate) fn take_slowest(&self) -> Vec<Slow> {
        self.slowest.lock().take().map(Slowest::into_jobs).unwrap_or_default()
    }

    /// Records the jobs that the broker confirmed as settled.
    pub(super) fn settled(&self, results: &[SettleResult]) {
        let good = results.iter().filter(|result| result.status() == SettleStatus::Ok);
        self.settled_ids(good.map(|result| result.id));
    }

    pub(super) fn settled_ids(&self, ids: impl Iterator<Item = i64>) {
        let new = self.ledger.settled(ids);
        self.settled.fetch_add(new, Relaxed);
        self.settled_at.store(self.now(), Relaxed);
        self.room.add_permits(new as usize);
        self.progress.notify_one();
    }

    pub(crate) fn settled_count(&self) -> u64 {
        self.settled.load(Relaxed)
    }

    /// Number of jobs whose enqueue call was answered.
    pub(crate) fn enqueued_count(&self) -> u64 {
        self.enqueued.load(Relaxed)
    }

    /// Time of the last settled job.
    pub(super) fn settled_at(&self) -> Instant {
        self.clock + Duration::from_nanos(self.settled_at.load(Relaxed))
    }

    /// Waits until this many jobs are settled. Gives up if no job is settled for a while; the count then shows the missing jobs.
    pub(super) async fn until_settled(&self, jobs: u64) {
        while self.settled_count() < jobs {
            if timeout(STALLED, self.progress.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Records the first failure of a task, and cancels all other tasks.
    pub(super) fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.failed.cancel();
    }

    /// Takes the error of the first failed task.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    pub(crate) fn faults(&self, waiting: u64) -> Faults {
        self.ledger.faults(waiting)
    }
}

/// Times since jobs were due.
#[derive(Debug)]
pub(crate) struct Latencies(Mutex<Micros>);

impl Latencies {
    fn new() -> Result<Self> {
        let latencies = Micros::new_with_bounds(1, LONGEST, 3);
        latencies.map(|latencies| Self(Mutex::new(latencies))).map_err(|error| Error::Usage(error.to_string()))
    }

    /// Records jobs that were due at the same time, in nanoseconds of the trial's clock.
    fn record(&self, due: u64, now: u64, jobs: u64) {
        self.0.lock().saturating_record_n((now.saturating_sub(due) / 1_000).max(1), jobs);
    }

    /// Returns the times since the last call of this function, and clears them.
    pub(crate) fn take(&self) -> Micros {
        let mut latencies = self.0.lock();
        let taken = latencies.clone();
        latencies.reset();
        taken
    }
}

/// Number of slowest jobs that are kept per trial.
const KEPT: usize = 100;

/// A slow job. Times are from the system clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slow {
    pub(crate) id: i64,
    /// Time at which the benchmark should have sent the job.
    pub(crate) due: SystemTime,
    /// Time from `due` until the enqueue call was answered. `None` if no answer was received.
    pub(crate) answered: Option<Duration>,
    /// Time from `due` until the job's handler began.
    pub(crate) picked_up: Duration,
}

/// Keeps the slowest jobs of a trial. Times are nanoseconds of the trial's clock.
#[derive(Debug)]
struct Slowest {
    /// System time at zero of the trial's clock.
    zero: SystemTime,
    /// Latency, id and due time of each kept job; the fastest is at the top of the heap.
    jobs: BinaryHeap<Reverse<(u64, i64, u64)>>,
    /// Maps the due time of a job to the time until its enqueue call was answered.
    answers: HashMap<u64, u64>,
}

impl Slowest {
    fn new(clock: Duration) -> Self {
        let zero = SystemTime::now() - clock;
        Self { zero, jobs: BinaryHeap::new(), answers: HashMap::new() }
    }

    fn answered(&mut self, due: u64, now: u64) {
        self.answers.insert(due, now.saturating_sub(due));
    }

    fn picked_up(&mut self, id: i64, due: u64, now: u64) {
        self.jobs.push(Reverse((now.saturating_sub(due), id, due)));
        if self.jobs.len() > KEPT {
            self.jobs.pop();
        }
    }

    fn into_jobs(self) -> Vec<Slow> {
        let Self { zero, jobs, answers } = self;
        let jobs = jobs.into_sorted_vec().into_iter();
        jobs.map(|Reverse((took, id, due))| Slow {
            id,
            due: zero + Duration::from_nanos(due),
            answered: answers.get(&due).copied().map(Duration::from_nanos),
            picked_up: Duration::from_nanos(took),
        })
        .collect()
    }
}
