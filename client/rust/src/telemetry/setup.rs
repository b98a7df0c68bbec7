//! Where spans and metrics go.

use std::sync::Arc;

use opentelemetry::{
    Context, InstrumentationScope,
    global::{self, BoxedTracer},
    metrics::MeterProvider,
    trace::{Span, SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, Tracer, TracerProvider},
};

use crate::ClientBuilder;

use super::meters::Meters;

/// Where the spans and metrics of a client go: to the program's global providers of OpenTelemetry, as they are when this is
/// made, unless others are given.
///
/// A client has one by itself. [`ClientBuilder::telemetry`] sets another one:
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
    /// `None`: nobody wants spans.
    pub(super) tracer: Option<Arc<BoxedTracer>>,
    /// `None`: nobody wants metrics.
    pub(super) meters: Option<Arc<Meters>>,
    pub(super) linked: bool,
}

impl Telemetry {
    /// To the global providers. What is not set up yet makes nothing, and costs nothing, also later.
    pub fn global() -> Self {
        let tracer = global::tracer_with_scope(scope());
        let provider = global::meter_provider();
        // The provider that does nothing has no state.
        let has_meters = size_of_val(&*provider) > 0;
        Self {
            tracer: is_real(&tracer).then(|| Arc::new(tracer)),
            meters: has_meters.then(|| Arc::new(Meters::new(&provider.meter_with_scope(scope())))),
            linked: false,
        }
    }

    /// Spans go to this provider.
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

    /// Metrics go to this provider.
    #[must_use]
    pub fn meter_provider(mut self, provider: &impl MeterProvider) -> Self {
        self.meters = Some(Arc::new(Meters::new(&provider.meter_with_scope(scope()))));
        self
    }

    /// Each attempt begins a trace of its own, with a link to its producer. Default: it is in the trace of its producer.
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
    /// Where spans and metrics go, and how. Default: [`Telemetry::global`], as it is when
    /// [`Client::builder`](crate::Client::builder) is called.
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.settings.telemetry = telemetry;
        self
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("howdah-client").with_version(env!("CARGO_PKG_VERSION")).build()
}

/// Whether a tracer makes spans. One that does nothing passes on the context of the parent; a real one makes another
/// context, or none here, where spans are suppressed so that the question is not in anybody's traces.
fn is_real(tracer: &BoxedTracer) -> bool {
    let (trace, span) = (TraceId::from(1), SpanId::from(1));
    let parent = SpanContext::new(trace, span, TraceFlags::default(), true, TraceState::default());
    let _suppressed = Context::enter_telemetry_suppressed_scope();
    let parent = Context::current().with_remote_span_context(parent);
    let made = tracer.start_with_context("is there a tracer?", &parent);
    made.span_context().span_id() != span
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_providers_there_is_nothing_to_do() {
        assert!(Telemetry::global().is_off());
    }
}
