//! Latency histograms, with traces of some jobs as exemplars if spans are exported.

use std::time::SystemTime;

use prometheus_client::{
    metrics::{
        exemplar::HistogramWithExemplars,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use super::Traced;

/// A latency histogram in seconds. Without exemplars it costs no more than a plain histogram.
#[derive(Clone, Debug)]
pub enum Latency {
    Plain(Histogram),
    /// Histogram that keeps the trace of the last sampled job of each bucket as exemplar.
    WithExemplars(HistogramWithExemplars<Traced>),
}

impl Latency {
    /// Creates a histogram with buckets from 0.1 ms to 52 s.
    pub(super) fn new(with_exemplars: bool) -> Self {
        let buckets = exponential_buckets(0.0001, 2.0, 20);
        if with_exemplars {
            Self::WithExemplars(HistogramWithExemplars::new(buckets))
        } else {
            Self::Plain(Histogram::new(buckets))
        }
    }

    /// Records the latency of a job.
    pub fn observe(&self, seconds: f64) {
        self.observe_traced(seconds, None);
    }

    /// Records the latency of a job, with its trace as the exemplar.
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
