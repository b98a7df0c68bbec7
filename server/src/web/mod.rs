//! The HTTP port: liveness, readiness, metrics, and where these are; and jobs, if that is enabled.

pub(crate) mod enqueue; // POST /v1/jobs
mod job_words; // jobs as HTTP says them

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
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

use crate::broker::SharedBroker;

/// What the routes need.
#[derive(Clone)]
struct Web {
    broker: SharedBroker,
    registry: Arc<Registry>,
}

/// A request whose headers are not there by then is closed, and so is an idle connection.
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
                    // Out of descriptors, mostly: not for ever, and nothing to spin on.
                    tracing::warn!(%error, "could not accept a connection on the HTTP port");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
        };
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(32 << 10);
            // A peer's mistake is its own business.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
}

/// For whoever opens it in a browser.
async fn root() -> &'static str {
    "Howdah, a job broker. Jobs go over gRPC, on another port. Here are:\n\n\
     /healthz  200 while the process runs\n\
     /readyz   200 while Postgres answers and the broker is not stopping\n\
     /metrics  figures for Prometheus\n"
}

/// The process runs.
async fn healthz() -> &'static str {
    "ok\n"
}

/// It can take calls: Postgres answers, and it is not stopping.
async fn readyz(State(web): State<Web>) -> Response {
    if web.broker.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    match web.broker.operator.ping_database().await {
        Ok(()) => "ready\n".into_response(),
        // The reason is for the log: it may name hosts and users.
        Err(error) => {
            tracing::warn!(%error, "not ready");
            (StatusCode::SERVICE_UNAVAILABLE, "Postgres cannot be reached\n").into_response()
        }
    }
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// For Prometheus.
async fn metrics(State(web): State<Web>) -> Response {
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, &web.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response()
}
