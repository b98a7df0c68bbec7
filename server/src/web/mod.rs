//! The HTTP port: liveness, readiness, metrics, a list of these; the page for operators; and enqueuing, if it is enabled.

pub(crate) mod enqueue; // POST /v1/jobs
pub(crate) mod body; // a body takes memory as it arrives
mod host; // the names that the port answers to
mod identity; // who calls, by certificate
mod job_words; // options of a job as words
mod stores; // what several stores have to say
mod places; // connections, and always one for a probe
pub(crate) mod write_within; // who does not read loses its connection

use std::{net::SocketAddr, sync::Arc, time::Duration};

use places::{Place, Places};
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
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service as _;

use crate::{
    access::{Operation, Rule},
    page,
    stores::SharedFleet,
    tls::{TlsPort, Transport},
};

/// State of the routes.
#[derive(Clone)]
struct Web {
    fleet: SharedFleet,
    /// The metrics of each store.
    registries: Arc<[Registry]>,
}

/// A connection is closed if the headers of a request take longer than this, also if it is idle.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// Connections at once. When all are taken, the one that has been idle for longest is closed for a new one.
pub(crate) const CONNECTIONS: usize = 256;
/// Requests that send jobs at once. The other connections are for probes and scrapers.
pub(crate) const ENQUEUES: usize = 192;

/// Serves until `shutdown`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<TlsPort>>,
    fleet: SharedFleet,
    shutdown: impl Future<Output = ()> + Send,
) {
    let broker = fleet.main().clone();
    let mut router = Router::new()
        .route("/", get(root))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Web { fleet: fleet.clone(), registries: stores::registries(&fleet) });
    if let Some(page) = page::routes(&fleet) {
        router = router.merge(page);
    }
    if broker.config().http_enqueue {
        router = router.merge(enqueue::routes(fleet.clone()));
    }
    if tls.as_ref().is_some_and(|tls| tls.asks_clients()) {
        router = identity::required(router);
    }
    let hosts: host::Hosts = broker.config().http_host.iter().map(|name| name.to_ascii_lowercase()).collect();
    let router = router.layer(middleware::from_fn_with_state(hosts, host::check));
    let places = Places::new(CONNECTIONS);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let (stream, from) = tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Usually we are out of file descriptors. This ends, and must not become a busy loop.
                    tracing::warn!(%error, "cannot accept a connection on the HTTP port; trying again");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
        };
        let place = tokio::select! {
            () = &mut shutdown => return,
            place = places.take(broker.access.address(from.ip())) => place,
        };
        connections.spawn(answer((stream, from), tls.clone(), router.clone(), place));
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection.
async fn answer((stream, from): (TcpStream, SocketAddr), tls: Option<Arc<TlsPort>>, router: Router, place: Arc<Place>) {
    let cut = CancellationToken::new();
    let accepted = async {
        match tls {
            None => Some((Transport::Plain(stream), None)),
            Some(tls) => tls.accept(stream, &cut).await,
        }
    };
    // A connection in its handshake is idle: it makes room for others, too.
    let accepted = Box::pin(place.closed.run_until_cancelled(accepted)).await;
    let Some(Some((stream, client))) = accepted else { return };
    if let Some(client) = &client {
        let _ = place.identity.set(client.identity.clone());
    }
    let its_place = place.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        its_place.touch();
        request.extensions_mut().insert(its_place.client(from));
        request.extensions_mut().insert(its_place.clone());
        router.clone().call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(32 << 10);
    let stream = TokioIo::new(WriteWithin::new(stream, WRITE_WITHIN));
    tokio::select! {
        // Errors of a peer are not ours to handle.
        _ = http.serve_connection(stream, service) => {}
        () = place.closed.cancelled() => {}
        () = client.as_ref().map_or(&cut, |client| &client.ended).cancelled() => {}
    }
}

/// A page for people who open it in a browser.
async fn root() -> &'static str {
    "Howdah, a job broker. Jobs use gRPC, on another port. This port has:\n\n\
     /ui/      the page for operators, unless it is off\n\
     /healthz  200 while the process runs\n\
     /readyz   200 while jobs can be stored, claimed and settled\n\
     /metrics  metrics for Prometheus\n"
}

/// Answers while the process runs.
async fn healthz() -> &'static str {
    "ok\n"
}

/// Succeeds if the broker can store, claim and settle jobs, and is not stopping.
async fn readyz(State(web): State<Web>, RawQuery(query): RawQuery) -> Response {
    if web.fleet.main().is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    if web.fleet.only().is_some() {
        return match web.fleet.main().operator.readiness().await {
            Ok(()) => "ready\n".into_response(),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
        };
    }
    stores::readyz(&web.fleet, query.as_deref()).await
}

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics for Prometheus. They name all task types, so they need `read:*`.
async fn metrics(State(web): State<Web>, Extension(place): Extension<Arc<Place>>, headers: HeaderMap) -> Response {
    let credential = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let access = &web.fleet.main().access;
    let permitted =
        async { access.caller(credential, place.peer()).await?.check_rule(Rule::Everything(Operation::Read)) };
    if let Err(error) = permitted.await {
        access.refusals.note_http(&error, "/metrics");
        return enqueue::failed(&error);
    }
    match stores::metrics(&web.registries) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// A job of its options, for fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn words_of_job(
    query: &str,
    headers: &axum::http::HeaderMap,
) -> Result<howdah_proto::v1::NewJob, crate::error::Error> {
    job_words::JobWords::of(query, headers)?.job("fuzz".into(), bytes::Bytes::new())
}
