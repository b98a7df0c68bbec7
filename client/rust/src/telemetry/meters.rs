//! Metric instruments.

use opentelemetry::metrics::{Counter, Histogram, Meter};

/// Histogram buckets of OpenTelemetry's messaging conventions, in seconds.
const BUCKETS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

#[derive(Debug)]
pub(super) struct Meters {
    /// Histogram of the duration of an operation: an enqueue, or the settling of an outcome until its confirmation.
    pub(super) operation: Histogram<f64>,
    pub(super) sent: Counter<u64>,
    pub(super) consumed: Counter<u64>,
    /// Histogram of the run time of handlers.
    pub(super) process: Histogram<f64>,
}

impl Meters {
    pub(super) fn new(meter: &Meter) -> Self {
        let seconds = |name: &'static str, description: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(description);
            histogram.with_boundaries(BUCKETS.to_vec()).build()
        };
        let messages = |name: &'static str, description: &'static str| {
            meter.u64_counter(name).with_unit("{message}").with_description(description).build()
        };
        Self {
            operation: seconds(
                "messaging.client.operation.duration",
                "Duration of messaging operation initiated by a producer or consumer client.",
            ),
            sent: messages(
                "messaging.client.sent.messages",
                "Number of messages producer attempted to send to the broker.",
            ),
            consumed: messages(
                "messaging.client.consumed.messages",
                "Number of messages that were delivered to the application.",
            ),
            process: seconds("messaging.process.duration", "Duration of processing operation."),
        }
    }
}
