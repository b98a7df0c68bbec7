//! A collector of OpenTelemetry that counts the spans it gets, and keeps none.

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

/// It receives until it is dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// Where spans are sent to.
    pub(crate) endpoint: String,
    spans: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Receiver {
    /// Begins to receive, on a port of its own.
    pub(crate) async fn start() -> Result<Self> {
        let failed = |error: std::io::Error| Error::Process(format!("no receiver of spans: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let endpoint = format!("http://{}", listener.local_addr().map_err(failed)?);
        let spans = Arc::new(AtomicU64::new(0));
        let service = TraceServiceServer::new(Count(spans.clone()));
        let serve = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let mut task = JoinSet::new();
        // If it ends, spans stay away, which their number shows.
        task.spawn(async move { drop(serve.await) });
        Ok(Self { endpoint, spans, _task: task })
    }

    /// How many have come.
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
        let of_resources = request.into_inner().resource_spans.into_iter();
        let count: usize = of_resources.flat_map(|of| of.scope_spans).map(|of| of.spans.len()).sum();
        self.0.fetch_add(count as u64, Relaxed);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
