//! The jobs with the highest latency, with timestamps that show where the time was spent.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::{Duration, SystemTime},
};

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
pub(super) struct Slowest {
    /// System time at zero of the trial's clock.
    zero: SystemTime,
    /// Latency, id and due time of each kept job; the fastest is at the top of the heap.
    jobs: BinaryHeap<Reverse<(u64, i64, u64)>>,
    /// Maps the due time of a job to the time until its enqueue call was answered.
    answers: HashMap<u64, u64>,
}

impl Slowest {
    pub(super) fn new(clock: Duration) -> Self {
        let zero = SystemTime::now() - clock;
        Self { zero, jobs: BinaryHeap::new(), answers: HashMap::new() }
    }

    pub(super) fn answered(&mut self, due: u64, now: u64) {
        self.answers.insert(due, now.saturating_sub(due));
    }

    pub(super) fn picked_up(&mut self, id: i64, due: u64, now: u64) {
        self.jobs.push(Reverse((now.saturating_sub(due), id, due)));
        if self.jobs.len() > KEPT {
            self.jobs.pop();
        }
    }

    pub(super) fn into_jobs(self) -> Vec<Slow> {
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
