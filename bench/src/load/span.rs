//! What a trial measured in a while.

use crate::environment::Mark;

/// The state of a trial at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Since the measurement began.
    pub(crate) seconds: f64,
    /// Jobs settled since then.
    pub(crate) settled: u64,
    /// Resident bytes of the brokers.
    pub(crate) resident: Option<u64>,
}

/// A measurement.
#[derive(Debug)]
pub(crate) struct Span {
    /// Jobs settled.
    pub(crate) jobs: u64,
    /// The seconds it took.
    pub(crate) seconds: f64,
    /// Samples during it.
    pub(crate) samples: Vec<Sample>,
    /// Resources used before and after.
    pub(crate) marks: [Mark; 2],
}

impl Span {
    /// Jobs per second.
    pub(crate) fn rate(&self) -> f64 {
        self.jobs as f64 / self.seconds.max(1e-9)
    }

    /// How often threads of the brokers, and of Postgres, left a processor.
    pub(crate) fn switches(&self) -> [Option<u64>; 2] {
        let [before, after] = &self.marks;
        std::array::from_fn(|at| {
            after.switches[at].zip(before.switches[at]).map(|(after, before)| after.saturating_sub(before))
        })
    }

    /// Several measurements as one, which has no samples: there was something else in between.
    pub(crate) fn all(spans: Vec<Self>) -> Option<Self> {
        spans.into_iter().reduce(|mut all, span| {
            all.samples.clear();
            all.jobs += span.jobs;
            all.seconds += span.seconds;
            all.marks[1].add(&span.marks);
            all
        })
    }
}
