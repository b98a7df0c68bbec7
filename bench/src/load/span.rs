//! The result of a measurement: rate, samples and resource counters.

use crate::environment::Mark;

/// Number of settled jobs and resident memory at one time of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Seconds since the start of the measurement.
    pub(crate) seconds: f64,
    /// Jobs settled since the start of the measurement.
    pub(crate) settled: u64,
    /// Resident bytes of the brokers.
    pub(crate) resident: Option<u64>,
}

/// A measurement.
#[derive(Debug)]
pub(crate) struct Span {
    /// Jobs settled.
    pub(crate) jobs: u64,
    /// Duration in seconds.
    pub(crate) seconds: f64,
    pub(crate) samples: Vec<Sample>,
    /// Resource counters at the start and at the end of the measurement.
    pub(crate) marks: [Mark; 2],
}

impl Span {
    /// Jobs per second.
    pub(crate) fn rate(&self) -> f64 {
        self.jobs as f64 / self.seconds.max(1e-9)
    }

    /// Context switches of the brokers and of Postgres.
    pub(crate) fn switches(&self) -> [Option<u64>; 2] {
        let [before, after] = &self.marks;
        std::array::from_fn(|at| {
            after.switches[at].zip(before.switches[at]).map(|(after, before)| after.saturating_sub(before))
        })
    }

    /// Sums several measurements into one; `None` without any. The sum has no samples, because other work ran in between.
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
