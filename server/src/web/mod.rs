//! The HTTP port: liveness, readiness, metrics.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::broker::SharedBroker;

/// What the routes need.
#[derive(Clone)]
struct Web {
    broker: SharedBroker,
    registry: Arc<Registry>,
}

/// Serves until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    broker: SharedBroker,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let registry = Arc::new(broker.metrics().registry());
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Web { broker, registry });
    axum::serve(listener, router).with_graceful_shutdown(shutdown).await
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
    match web.broker.ping_database().await {
        Ok(()) => "ready\n".into_response(),
        // The reason is for the log: it may name hosts and users.
        Err(error) => {
            tracing::warn!(%error, "not ready");
            (StatusCode::SERVICE_UNAVAILABLE, "Postgres cannot be reached\n").into_response()
        }
    }
}

/// For Prometheus.
async fn metrics(State(web): State<Web>) -> Response {
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, &web.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, TYPE)], text).into_response()
}
