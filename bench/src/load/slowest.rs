//! The jobs that were picked up last, with the times that tell where the rest of them was spent.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::{Duration, SystemTime},
};

/// So many are kept.
const KEPT: usize = 100;

/// A job, and what is known of it. Times are of the system's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slow {
    pub(crate) id: i64,
    /// When it should have been sent.
    pub(crate) due: SystemTime,
    /// From then until its call was answered.
    pub(crate) answered: Option<Duration>,
    /// From then until its handler began.
    pub(crate) picked_up: Duration,
}

/// Keeps the slowest jobs of a trial. Times are nanoseconds of the trial's clock, as everywhere in a trial.
#[derive(Debug)]
pub(super) struct Slowest {
    /// When the trial's clock was at zero.
    zero: SystemTime,
    /// How long until it was picked up, its id, and when it was due; the quickest of them comes first.
    jobs: BinaryHeap<Reverse<(u64, i64, u64)>>,
    /// How long until the call was answered, by when its job was due.
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

    /// The slowest first.
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
