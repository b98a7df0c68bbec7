//! Histograms of latencies, with traces of some jobs as exemplars if spans are exported, and of batch sizes.

use std::{fmt, ops::Deref, time::SystemTime};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder},
    metrics::{
        MetricType,
        exemplar::HistogramWithExemplars,
        histogram::{Histogram, exponential_buckets},
    },
};

/// Labels of an exemplar.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Traced {
    /// Trace id in hexadecimal.
    pub trace_id: String,
    /// Span id in hexadecimal.
    pub span_id: String,
}

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
}

impl Default for Latency {
    fn default() -> Self {
        Self::new(false)
    }
}

impl EncodeMetric for Latency {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Self::Plain(histogram) => histogram.encode(encoder),
            Self::WithExemplars(histogram) => histogram.encode(encoder),
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Histogram of the number of items in a batch, with buckets from 1 to 8,192.
#[derive(Clone, Debug)]
pub struct BatchSize(Histogram);

impl Default for BatchSize {
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(1.0, 2.0, 14)))
    }
}

impl Deref for BatchSize {
    type Target = Histogram;

    fn deref(&self) -> &Histogram {
        &self.0
    }
}

impl EncodeMetric for BatchSize {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
