//! The HTTP port: liveness, readiness, metrics and an index of the paths; the page for operators; enqueuing, if enabled.

pub(crate) mod enqueue; // POST /v1/jobs
pub(crate) mod body; // request bodies, which reserve memory as they arrive
mod guards; // checks of every request: host name, client certificate
mod job_words; // options of a job as text
mod stores; // readiness and metrics of several stores
mod slots; // connection slots, of which a probe always gets one
mod wrong_port; // gRPC clients that connect to the HTTP port
pub(crate) mod write_within; // closes connections whose peer does not read

use std::{net::SocketAddr, sync::Arc, time::Duration};

use howdah_core::error::Error;
use howdah_engine::access::{Operation, Rule};
use slots::{Slot, Slots};
use write_within::{WRITE_WITHIN, WriteWithin};

use axum::{
    Router,
    extract::{Extension, RawQuery, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service as _;

use crate::{
    page,
    stores::SharedStores,
    tls::{TlsPort, Transport},
};

/// State of the HTTP routes.
#[derive(Clone)]
struct Web {
    stores: SharedStores,
    /// Registries of the metrics, one for each store.
    registries: Arc<stores::Registries>,
}

/// Time limit for the headers of a request. A connection that is idle for this time is closed.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of concurrent connections. A further connection replaces the connection that has been idle for the longest
/// time.
pub(crate) const CONNECTIONS: usize = 256;
/// Maximum number of concurrent requests that enqueue jobs. The other connections are reserved for probes and scrapers.
pub(crate) const ENQUEUES: usize = 192;

/// Serves the HTTP port until `shutdown` completes.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<TlsPort>>,
    stores: SharedStores,
    shutdown: impl Future<Output = ()> + Send,
) {
    let broker = stores.main().clone();
    let mut router = Router::new()
        .route("/", get(root))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Web { stores: stores.clone(), registries: Arc::default() });
    if let Some(page) = page::routes(&stores) {
        router = router.merge(page);
    }
    if broker.config().http_enqueue {
        router = router.merge(enqueue::routes(stores.clone()));
    }
    if tls.as_ref().is_some_and(|tls| tls.asks_clients()) {
        router = guards::require_certificate(router);
    }
    let hosts: guards::Hosts = broker.config().http_host.iter().map(|name| name.to_ascii_lowercase()).collect();
    let router = router.layer(middleware::from_fn_with_state(hosts, guards::check_host));
    let slots = Slots::new(CONNECTIONS);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let (stream, from) = tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The usual cause is a temporary lack of file descriptors. The pause prevents a busy loop.
                    tracing::warn!(%error, "cannot accept a connection on the HTTP port; trying again");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
        };
        let slot = tokio::select! {
            () = &mut shutdown => return,
            slot = slots.take(stores.authenticator().address(from.ip())) => slot,
        };
        connections.spawn(answer((stream, from), tls.clone(), router.clone(), slot));
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection.
async fn answer((stream, from): (TcpStream, SocketAddr), tls: Option<Arc<TlsPort>>, router: Router, slot: Arc<Slot>) {
    let cut = CancellationToken::new();
    let accepted = async {
        match tls {
            None if wrong_port::is_http2(&stream).await => {
                wrong_port::refuse(stream).await;
                None
            }
            None => Some((Transport::Plain(stream), None)),
            Some(tls) => tls.accept(stream, &cut).await,
        }
    };
    // A connection in its TLS handshake counts as idle, so it may be closed for a new one.
    let accepted = Box::pin(slot.closed.run_until_cancelled(accepted)).await;
    let Some(Some((stream, client))) = accepted else { return };
    if let Some(client) = &client {
        let _ = slot.identity.set(client.identity.clone());
    }
    let its_slot = slot.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        its_slot.touch();
        request.extensions_mut().insert(its_slot.client(from));
        request.extensions_mut().insert(its_slot.clone());
        router.clone().call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(32 << 10);
    let stream = TokioIo::new(WriteWithin::new(stream, WRITE_WITHIN));
    tokio::select! {
        // Connection errors that the peer causes need no handling.
        _ = http.serve_connection(stream, service) => {}
        () = slot.closed.cancelled() => {}
        () = client.as_ref().map_or(&cut, |client| &client.ended).cancelled() => {}
    }
}

/// Lists the paths of the port, for people who open it in a browser.
async fn root() -> &'static str {
    "Howdah, a job broker. Jobs use gRPC, on another port. This port has:\n\n\
     /ui/      the page for operators, unless it is off\n\
     /healthz  200 while the process runs\n\
     /readyz   200 while jobs can be stored, claimed and settled\n\
     /metrics  metrics for Prometheus\n"
}

/// Liveness: answers as long as the process runs.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness: succeeds if the broker can store, claim and settle jobs, and is not stopping.
async fn readyz(
    State(web): State<Web>,
    stranger: Option<Extension<guards::Stranger>>,
    Extension(slot): Extension<Arc<Slot>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    if web.stores.main().is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    if web.stores.now().only().is_some() {
        return match web.stores.main().operator.readiness().await {
            Ok(()) => "ready\n".into_response(),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
        };
    }
    let is_stranger = stranger.is_some() || may_read(&web, &slot, &headers).await.is_err();
    stores::readyz(&web.stores.now(), query.as_deref(), is_stranger).await
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics for Prometheus. The metrics contain the names of all task types, so callers need the scope `read:*`.
async fn metrics(State(web): State<Web>, Extension(slot): Extension<Arc<Slot>>, headers: HeaderMap) -> Response {
    if let Err(error) = may_read(&web, &slot, &headers).await {
        web.stores.authenticator().refusals.note_http(&error, "/metrics");
        return enqueue::failed(&error);
    }
    match web.registries.text(&web.stores.now()) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Fails unless the caller may read every task type.
async fn may_read(web: &Web, slot: &Slot, headers: &HeaderMap) -> Result<(), Error> {
    let credential = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    web.stores.authenticator().caller(credential, slot.peer()).await?.check_rule(Rule::Everything(Operation::Read))
}

/// Entry point for fuzzers: builds a job from the options in a query and headers.
#[cfg(feature = "fuzzing")]
pub(crate) fn words_of_job(
    query: &str,
    headers: &axum::http::HeaderMap,
) -> Result<howdah_proto::v1::NewJob, howdah_core::error::Error> {
    job_words::JobWords::parse(query, headers)?.job("fuzz".into(), bytes::Bytes::new())
}
