//! Metrics of spans, and the labels of exemplars.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::ByReason;

/// Labels of an exemplar.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Traced {
    /// Trace id in hexadecimal.
    pub trace_id: String,
    /// Span id in hexadecimal.
    pub span_id: String,
}

/// Span metrics. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TraceMetrics {
    /// Number of spans exported to the collector.
    pub exported: Counter,
    /// Number of dropped spans, by reason.
    pub dropped: Family<ByReason, Counter>,
}

impl TraceMetrics {
    pub fn register(&self, r: &mut Registry) {
        r.register("spans_exported", "Spans that the collector of traces has taken", self.exported.clone());
        r.register(
            "spans_dropped",
            "Spans that were dropped: collector (it did not take them), queue (too many waited for it), attempts (too many \
             sampled attempts at once)",
            self.dropped.clone(),
        );
    }

    /// Counts dropped spans.
    pub fn drop_spans(&self, reason: &'static str, count: usize) {
        self.dropped.get_or_create(&ByReason { reason }).inc_by(count as u64);
    }
}
