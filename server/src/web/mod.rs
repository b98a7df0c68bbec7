//! The HTTP port: liveness, readiness, metrics, a list of these; and enqueuing, if it is enabled.

pub(crate) mod enqueue; // POST /v1/jobs
mod job_words; // options of a job as words

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};

use crate::{
    access::{Operation, Rule},
    broker::SharedBroker,
};

/// State of the routes.
#[derive(Clone)]
struct Web {
    broker: SharedBroker,
    registry: Arc<Registry>,
}

/// A connection is closed if the headers of a request take longer than this, also if it is idle.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// Connections at once; this port is for probes and scrapers.
pub(crate) const CONNECTIONS: usize = 256;

/// Serves until `shutdown`.
pub async fn serve(listener: TcpListener, broker: SharedBroker, shutdown: impl Future<Output = ()> + Send) {
    let registry = Arc::new(broker.metrics().registry());
    let mut router = Router::new()
        .route("/", get(root))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Web { broker: broker.clone(), registry });
    if broker.config().http_enqueue {
        router = router.merge(enqueue::routes(broker));
    }
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let stream = tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Usually we are out of file descriptors. This ends, and must not become a busy loop.
                    tracing::warn!(%error, "cannot accept a connection on the HTTP port; trying again");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
        };
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(32 << 10);
            // Errors of a peer are not ours to handle.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
}

/// A page for people who open it in a browser.
async fn root() -> &'static str {
    "Howdah, a job broker. Jobs use gRPC, on another port. This port has:\n\n\
     /healthz  200 while the process runs\n\
     /readyz   200 while Postgres answers and the broker is not stopping\n\
     /metrics  metrics for Prometheus\n"
}

/// Answers while the process runs.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Succeeds if the broker can take calls: Postgres answers, and it is not stopping.
async fn readyz(State(web): State<Web>) -> Response {
    if web.broker.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    match web.broker.operator.ping_database().await {
        Ok(()) => "ready\n".into_response(),
        // The reason is only for the log: it may contain names of hosts and users.
        Err(error) => {
            tracing::warn!(%error, "not ready");
            (StatusCode::SERVICE_UNAVAILABLE, "Postgres cannot be reached\n").into_response()
        }
    }
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics for Prometheus. They name all task types, so they need `read:*`.
async fn metrics(State(web): State<Web>, headers: HeaderMap) -> Response {
    let credential = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let permitted =
        async { web.broker.access.authenticate(credential).await?.check_rule(Rule::Everything(Operation::Read)) };
    if let Err(error) = permitted.await {
        return enqueue::failed(&error);
    }
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, &web.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response()
}
