//! An OpenTelemetry collector for tests, which keeps all received spans.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use howdah_core::config::Config;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Identity, Server, ServerTlsConfig},
};

use crate::{support::*, tls_server::authority::Files};

/// A received span.
#[derive(Clone, Debug)]
pub struct Seen {
    pub name: String,
    pub kind: SpanKind,
    pub id: String,
    /// Id of the parent span; empty for a root span.
    pub parent: String,
    pub start: u64,
    pub end: u64,
    pub is_error: bool,
    pub error: String,
    attributes: HashMap<String, String>,
}

impl Seen {
    /// The value of a span's attribute as text; empty if the attribute is missing.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

#[derive(Clone, Default)]
struct Received {
    by_trace: HashMap<String, Vec<Seen>>,
    resource: HashMap<String, String>,
    headers: HashMap<String, String>,
}

/// An OpenTelemetry collector on a free port.
pub struct Collector {
    pub endpoint: String,
    received: watch::Receiver<Received>,
    task: JoinHandle<()>,
}

impl Collector {
    pub async fn start() -> Self {
        Self::serve(Server::builder(), "http").await
    }

    /// Starts a collector that accepts only TLS, with this certificate.
    pub async fn start_with_tls(files: &Files) -> Self {
        let read = |path| std::fs::read(path).expect("a file");
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(read(&files.cert), read(&files.key)));
        Self::serve(Server::builder().tls_config(tls).expect("TLS"), "https").await
    }

    async fn serve(mut server: Server, scheme: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address: SocketAddr = listener.local_addr().expect("address");
        let (send, received) = watch::channel(Received::default());
        let service = TraceServiceServer::new(Service(Arc::new(send)));
        let serve = server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move { serve.await.expect("serve") });
        Self { endpoint: format!("{scheme}://{address}"), received, task }
    }

    /// Starts a broker that exports to this collector and samples no jobs without a trace.
    pub async fn broker(&self) -> TestBroker {
        self.broker_with_ratio(0.0).await
    }

    /// Starts a broker that exports to this collector and samples this fraction of the jobs without a trace.
    pub async fn broker_with_ratio(&self, ratio: f64) -> TestBroker {
        TestBroker::start_with(self.sampling(ratio)).await
    }

    /// Starts two brokers on one database, both with this sampling ratio.
    pub async fn pair_with_ratio(&self, ratio: f64) -> (TestBroker, TestBroker) {
        TestBroker::pair_with(self.sampling(ratio)).await
    }

    fn sampling(&self, ratio: f64) -> impl Fn(&mut Config) + '_ {
        move |config| {
            config.otlp.endpoint = Some(self.endpoint.clone());
            config.otlp.sample_ratio = ratio;
            config.http_enqueue = true;
        }
    }

    /// Waits until a trace has this many spans, and returns them ordered by time.
    pub async fn spans(&self, trace: &str, count: usize) -> Vec<Seen> {
        let mut received = self.received.clone();
        let spans =
            received.wait_for(|received| received.by_trace.get(trace).is_some_and(|spans| spans.len() >= count));
        let mut spans = with_timeout("the spans", spans).await.expect("a collector").by_trace[trace].clone();
        // The span of a wait ends when the span of its attempt starts. If the wait is empty, both have the same start, so the
        // end decides.
        spans.sort_by_key(|span| (span.start, span.end));
        spans
    }

    /// Ids of all received traces.
    pub fn traces(&self) -> Vec<String> {
        self.received.borrow().by_trace.keys().cloned().collect()
    }

    /// A resource attribute of the last export request; empty if missing.
    pub fn resource(&self, name: &str) -> String {
        self.received.borrow().resource.get(name).cloned().unwrap_or_default()
    }

    /// A header of the last export request; empty if missing.
    pub fn header(&self, name: &str) -> String {
        self.received.borrow().headers.get(name).cloned().unwrap_or_default()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Service(Arc<watch::Sender<Received>>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let headers = request.metadata().as_ref();
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap_or("").to_owned()));
        let headers = headers.collect();
        let spans = request.into_inner().resource_spans;
        self.0.send_modify(|received| {
            received.headers = headers;
            for of_resource in spans {
                received.resource = texts(of_resource.resource.map(|resource| resource.attributes).unwrap_or_default());
                for span in of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans) {
                    received.by_trace.entry(hex(&span.trace_id)).or_default().push(seen(span));
                }
            }
        });
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn seen(span: Span) -> Seen {
    let status = span.status.clone().unwrap_or_default();
    Seen {
        kind: span.kind(),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        is_error: status.code() == StatusCode::Error,
        error: status.message,
        name: span.name,
        attributes: texts(span.attributes),
    }
}

fn texts(attributes: Vec<KeyValue>) -> HashMap<String, String> {
    let text = |value| match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("unexpected: {other:?}"),
    };
    let one = |attribute: KeyValue| (attribute.key, text(attribute.value.and_then(|value| value.value)));
    attributes.into_iter().map(one).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
