//! An OpenTelemetry collector that counts the received spans and discards them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::error::{Error, Result};

/// A running collector, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// URL to send spans to.
    pub(crate) endpoint: String,
    spans: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Receiver {
    /// Starts a collector on a free port.
    pub(crate) async fn start() -> Result<Self> {
        let failed = |error: std::io::Error| Error::Process(format!("cannot start the receiver of spans: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let endpoint = format!("http://{}", listener.local_addr().map_err(failed)?);
        let spans = Arc::new(AtomicU64::new(0));
        let service = TraceServiceServer::new(Count(spans.clone()));
        let serve = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let mut task = JoinSet::new();
        // An error that ends the server is not reported: it shows as missing spans in the count.
        task.spawn(async move { drop(serve.await) });
        Ok(Self { endpoint, spans, _task: task })
    }

    /// Number of spans received.
    pub(crate) fn spans(&self) -> u64 {
        self.spans.load(Relaxed)
    }
}

struct Count(Arc<AtomicU64>);

#[tonic::async_trait]
impl TraceService for Count {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let count: usize = resources.flat_map(|resource| resource.scope_spans).map(|scope| scope.spans.len()).sum();
        self.0.fetch_add(count as u64, Relaxed);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
