//! A Rust client whose spans and metrics are recorded in memory.

use std::collections::BTreeMap;

use howdah_client::{Client, IntoOutcome, Job, Telemetry, WorkerHandle};
use opentelemetry::KeyValue;
use opentelemetry_sdk::{
    metrics::{
        InMemoryMetricExporter, SdkMeterProvider,
        data::{AggregatedMetrics, MetricData},
    },
    trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData},
};

use crate::support::*;

pub struct Watched {
    pub client: Client,
    pub spans: InMemorySpanExporter,
    metrics: InMemoryMetricExporter,
    meters: SdkMeterProvider,
}

pub type Attributes = BTreeMap<String, String>;

impl Watched {
    pub async fn new(broker: &TestBroker) -> Self {
        Self::with(broker, Sampler::AlwaysOn, |telemetry| telemetry).await
    }

    pub async fn with(broker: &TestBroker, sampler: Sampler, change: impl FnOnce(Telemetry) -> Telemetry) -> Self {
        let (spans, metrics) = (InMemorySpanExporter::default(), InMemoryMetricExporter::default());
        let tracers = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).with_sampler(sampler).build();
        let meters = SdkMeterProvider::builder().with_periodic_exporter(metrics.clone()).build();
        let telemetry = change(Telemetry::global().tracer_provider(&tracers).meter_provider(&meters));
        let client = Client::builder().endpoint(&broker.grpc).telemetry(telemetry).connect_timeout(PATIENCE);
        let client = client.connect().await.expect("connect");
        Self { client, spans, metrics, meters }
    }

    /// Starts a worker of the type `mail`.
    pub fn worker<F, T>(&self, handler: impl Fn(Job) -> F + Send + Sync + 'static) -> WorkerHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: IntoOutcome,
    {
        self.client.worker().handle("mail", handler).build().start()
    }

    /// Returns the spans recorded so far, ordered by their ends.
    pub fn spans(&self) -> Vec<SpanData> {
        self.spans.get_finished_spans().expect("spans")
    }

    /// Returns the only span with this name.
    pub fn span(&self, name: &str) -> SpanData {
        let found: Vec<SpanData> = self.spans().into_iter().filter(|span| span.name == name).collect();
        let names: Vec<_> = self.spans().iter().map(|span| span.name.clone()).collect();
        assert_eq!(found.len(), 1, "{name} of {names:?}");
        found.into_iter().next().expect("one")
    }

    /// Returns the value of a counter, or the number of recorded values of a histogram, for each set of attributes.
    pub fn metric(&self, name: &str) -> Vec<(u64, Attributes)> {
        self.meters.force_flush().expect("metrics");
        let all = self.metrics.get_finished_metrics().expect("metrics");
        let last = all.last().expect("metrics");
        let metrics = last.scope_metrics().flat_map(|scope| scope.metrics());
        let found = metrics.filter(|metric| metric.name() == name);
        found.flat_map(|metric| points(metric.data())).collect()
    }
}

fn points(data: &AggregatedMetrics) -> Vec<(u64, Attributes)> {
    match data {
        AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
            let points = histogram.data_points();
            points.map(|point| (point.count(), named(point.attributes()))).collect()
        }
        AggregatedMetrics::U64(MetricData::Sum(sum)) => {
            sum.data_points().map(|point| (point.value(), named(point.attributes()))).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Attributes as text.
pub fn named<'a>(attributes: impl IntoIterator<Item = &'a KeyValue>) -> Attributes {
    attributes.into_iter().map(|one| (one.key.to_string(), one.value.to_string())).collect()
}

/// Returns these attributes together with the attributes that all metrics have.
pub fn expected(broker: &TestBroker, kind: &str, operation: &str, more: &[(&str, &str)]) -> Attributes {
    let (host, port) = broker.address().rsplit_once(':').expect("an address");
    let all = [
        ("messaging.system", "howdah"),
        ("messaging.operation.type", kind),
        ("messaging.operation.name", operation),
        ("messaging.destination.name", "mail"),
        ("server.address", host),
        ("server.port", port),
    ];
    all.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Whether the span has this attribute.
pub fn has(span: &SpanData, (name, value): (&str, &str)) -> bool {
    named(&span.attributes).get(name).map(String::as_str) == Some(value)
}
