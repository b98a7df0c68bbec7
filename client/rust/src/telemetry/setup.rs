//! Destinations of spans and metrics, and the metric instruments.

use std::sync::Arc;

use opentelemetry::{
    Context, InstrumentationScope,
    global::{self, BoxedTracer},
    metrics::{Counter, Histogram, Meter, MeterProvider},
    trace::{Span, SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, Tracer, TracerProvider},
};

use crate::ClientBuilder;

/// Histogram buckets of OpenTelemetry's messaging conventions, in seconds.
const BUCKETS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Destinations of a client's spans and metrics: the global OpenTelemetry providers at the time of its creation, unless
/// others are set.
///
/// Every client has a default `Telemetry`. [`ClientBuilder::telemetry`] sets another one:
///
/// ```no_run
/// # async fn connect() -> howdah_client::Result<()> {
/// use howdah_client::{Client, Telemetry};
///
/// let client = Client::builder().telemetry(Telemetry::global().linked()).connect().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// `None` if spans are not recorded.
    pub(super) tracer: Option<Arc<BoxedTracer>>,
    /// `None` if metrics are not recorded.
    pub(super) meters: Option<Arc<Meters>>,
    pub(super) linked: bool,
}

impl Telemetry {
    /// Uses the current global providers. Providers that are set later are not used.
    pub fn global() -> Self {
        let tracer = global::tracer_with_scope(scope());
        let provider = global::meter_provider();
        // OpenTelemetry's API does not tell whether a provider is set. The default no-op provider is a type without fields,
        // of size 0.
        let has_meters = size_of_val(&*provider) > 0;
        Self {
            tracer: is_real(&tracer).then(|| Arc::new(tracer)),
            meters: has_meters.then(|| Arc::new(Meters::new(&provider.meter_with_scope(scope())))),
            linked: false,
        }
    }

    /// Sends spans to this provider.
    #[must_use]
    pub fn tracer_provider<P>(mut self, provider: &P) -> Self
    where
        P: TracerProvider,
        P::Tracer: Send + Sync + 'static,
        <P::Tracer as Tracer>::Span: Send + Sync + 'static,
    {
        self.tracer = Some(Arc::new(BoxedTracer::new(Box::new(provider.tracer_with_scope(scope())))));
        self
    }

    /// Sends metrics to this provider.
    #[must_use]
    pub fn meter_provider(mut self, provider: &impl MeterProvider) -> Self {
        self.meters = Some(Arc::new(Meters::new(&provider.meter_with_scope(scope()))));
        self
    }

    /// Starts a new trace for each attempt, linked to the producer's. Default: an attempt belongs to its producer's trace.
    #[must_use]
    pub fn linked(mut self) -> Self {
        self.linked = true;
        self
    }

    pub(super) fn is_off(&self) -> bool {
        self.tracer.is_none() && self.meters.is_none()
    }
}

impl ClientBuilder {
    /// Sets destinations and options of spans and metrics. Default: [`Telemetry::global`] at the time of
    /// [`Client::builder`](crate::Client::builder).
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.settings.telemetry = telemetry;
        self
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("howdah-client").with_version(env!("CARGO_PKG_VERSION")).build()
}

/// Whether a tracer creates spans. Starts a probe span with a known parent: a no-op tracer returns the parent's span id, a
/// real one a new id. Tracing is suppressed during the probe, so that it appears in no trace.
fn is_real(tracer: &BoxedTracer) -> bool {
    let (trace, span) = (TraceId::from(1), SpanId::from(1));
    let parent = SpanContext::new(trace, span, TraceFlags::default(), true, TraceState::default());
    let _suppressed = Context::enter_telemetry_suppressed_scope();
    let parent = Context::current().with_remote_span_context(parent);
    let made = tracer.start_with_context("is there a tracer?", &parent);
    made.span_context().span_id() != span
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telemetry_is_off_without_providers() {
        assert!(Telemetry::global().is_off());
    }
}
