//! Latencies, with the traces of some jobs as exemplars where spans are made.

use std::time::SystemTime;

use prometheus_client::{
    metrics::{
        exemplar::HistogramWithExemplars,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use super::Traced;

/// A histogram of seconds. Without exemplars it costs what a plain one costs.
#[derive(Clone, Debug)]
pub enum Latency {
    /// Without exemplars.
    Plain(Histogram),
    /// With the last sampled job of each bucket.
    WithExemplars(HistogramWithExemplars<Traced>),
}

impl Latency {
    /// From 0.1 ms to 52 s.
    pub(super) fn new(with_exemplars: bool) -> Self {
        let buckets = exponential_buckets(0.0001, 2.0, 20);
        if with_exemplars {
            Self::WithExemplars(HistogramWithExemplars::new(buckets))
        } else {
            Self::Plain(Histogram::new(buckets))
        }
    }

    /// Counts a job.
    pub fn observe(&self, seconds: f64) {
        self.observe_traced(seconds, None);
    }

    /// Counts a job, and shows its trace.
    pub fn observe_traced(&self, seconds: f64, trace: Option<Traced>) {
        match self {
            Self::Plain(histogram) => histogram.observe(seconds),
            Self::WithExemplars(histogram) => {
                let now = trace.is_some().then(SystemTime::now);
                histogram.observe(seconds, trace, now);
            }
        }
    }

    pub(super) fn register(&self, r: &mut Registry, name: &str, help: &str) {
        match self {
            Self::Plain(histogram) => r.register_with_unit(name, help, Unit::Seconds, histogram.clone()),
            Self::WithExemplars(histogram) => r.register_with_unit(name, help, Unit::Seconds, histogram.clone()),
        }
    }
}
