//! The gRPC server: its services, its bounds, and how it stops.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use howdah_core::{error::Error, job::Limits};
use howdah_engine::metrics::ConnectionCounts;
use howdah_proto::v1::{
    access_service_server::AccessServiceServer, bulk_service_server::BulkServiceServer,
    job_service_server::JobServiceServer, schedule_service_server::ScheduleServiceServer,
    settings_service_server::SettingsServiceServer, store_service_server::StoreServiceServer,
    task_type_service_server::TaskTypeServiceServer, worker_service_server::WorkerServiceServer,
};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{codec::CompressionEncoding, codegen::http::HeaderValue, service::Routes, transport};
use tower::layer::util::{Identity, Stack};

use super::{
    answer::TAKEN_WITHIN,
    authenticate::Authenticate,
    calls::GuardCalls,
    incoming::{Terms, incoming},
    receive::{Budget, ReceiveTimeouts, ReceiveWithin},
    tools::{self, Health},
    verbs::{Gateway, workers::messages},
};
use crate::{credentials::Authenticator, stores::SharedStores, tls::TlsPort};

/// Flow-control window of a stream: bytes in flight or unread. A batch of small jobs fits, so it needs no further round trip.
/// The window must not be larger: h2 counts unread small DATA frames with about 230 bytes each, and ends the connection when
/// they exceed half of the connection's window. With these two window sizes, flow control stops a stream of unread tiny
/// messages before that.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// Flow-control window of a connection. It bounds the unread bytes that one connection can make the broker hold. Both windows
/// are fixed: hyper's adaptive window would override them, and the broker could not limit it.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Maximum frame size, the smallest that HTTP/2 allows: frames of many streams interleave, and an unfinished frame uses little
/// memory.
const FRAME_BYTES: u32 = 16 << 10;
/// Maximum size of a call's headers, in bytes. A token and a trace context fit; a flood of CONTINUATION frames does not.
pub(crate) const HEADER_BYTES: u32 = 16 << 10;
/// Maximum number of streams of a connection that the client has reset before the broker accepted them. If there are more (a
/// reset flood), the connection ends.
pub(crate) const PENDING_RESETS: usize = 100;
/// Maximum number of streams that the broker resets on one connection because of the client's protocol errors. This is
/// hyper's default.
const ERROR_RESETS: usize = 1024;
/// Time without an answer to an HTTP/2 ping after which a peer counts as lost. It equals the maximum liveness of a worker,
/// because a blocked process answers no pings. The kernel notices dead links (`incoming`), and heartbeats notice dead workers.
/// Pings find peers that died behind a proxy that keeps the connection open.
pub(crate) const PING_TIMEOUT: Duration = *messages::LIVENESS.end();
/// Interval between HTTP/2 pings of a peer.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit for a peer to send the HTTP/2 preface.
pub(crate) const PREFACE: Duration = Duration::from_secs(5);
/// Time limit of a call, from its headers to the headers of its response. It exceeds the longest wait of `PullJobs` and
/// the time limit of a statement.
pub(crate) const CALL: Duration = Duration::from_mins(2);
/// Time limits for receiving a message. `message` and `mib` suit networks of at least 1 MiB per second. No limit exceeds
/// `CALL`, so that a call holds no memory after its time limit.
pub(crate) const RECEIVE_TIMEOUTS: ReceiveTimeouts = ReceiveTimeouts {
    room: Duration::from_secs(10),
    message: Duration::from_secs(5),
    mib: Duration::from_secs(1),
    held: CALL,
    end: Duration::from_secs(5),
    answer: TAKEN_WITHIN,
};
/// Time that the server waits for connections to close after it has cut them.
const CUT: Duration = Duration::from_secs(1);

/// A gRPC server for the brokers of a process.
pub struct Server {
    stores: SharedStores,
    health: Health,
    tls: Option<Arc<TlsPort>>,
}

impl Server {
    /// Creates a server. `health` reports `NOT_SERVING` until the server serves, and again when it stops.
    pub fn new(stores: SharedStores, health: Health) -> Self {
        Self { stores, health, tls: None }
    }

    /// Sets the TLS of the port; with `None` the port serves without TLS.
    pub(crate) fn with_tls(self, tls: Option<Arc<TlsPort>>) -> Self {
        Self { tls, ..self }
    }

    /// Serves until `shutdown` is ready, then stops within `deadline` plus a second.
    ///
    /// To stop, health becomes `NOT_SERVING`, the listener is closed, connections are told to open no more streams, and
    /// pipelines end after the requests in flight. Connections that are still open at the deadline, and connections on which
    /// the peer has sent nothing, are cut. The caller must drain the broker before `shutdown` or with it, because the server
    /// does not end the sessions of workers.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
        deadline: Duration,
    ) -> Result<(), Error> {
        let stopping = CancellationToken::new();
        let broker = self.stores.main();
        let routes = routes(&self.stores, &self.health, &stopping);
        let limits = &broker.config().limits;
        let edge = Edge {
            health: self.health,
            access: Some(self.stores.authenticator().clone()),
            stopping,
            counts: broker.metrics().connections.clone(),
            database: HeaderValue::from_str(&broker.database_id).ok(),
            tls: self.tls,
            preface: PREFACE,
            call: CALL,
            budget: Arc::new(Budget::new(limits, RECEIVE_TIMEOUTS)),
        };
        edge.serve(listener, routes, limits, shutdown, deadline).await
    }
}

/// Parts of the server between the network and the services: limits, authentication, TLS and health.
pub(super) struct Edge {
    pub(super) health: Health,
    /// Authenticates callers. `None` accepts every caller.
    pub(super) access: Option<Arc<Authenticator>>,
    /// Cancelled when the server starts to stop.
    pub(super) stopping: CancellationToken,
    pub(super) counts: ConnectionCounts,
    /// Id of the broker's database, for a header of every response.
    pub(super) database: Option<HeaderValue>,
    pub(super) tls: Option<Arc<TlsPort>>,
    pub(super) preface: Duration,
    pub(super) call: Duration,
    pub(super) budget: Arc<Budget>,
}

impl Edge {
    /// Serves `routes` until `shutdown`, and stops as [`Server::serve`] describes.
    pub(super) async fn serve(
        self,
        listener: TcpListener,
        routes: Routes,
        limits: &Limits,
        shutdown: impl Future<Output = ()>,
        deadline: Duration,
    ) -> Result<(), Error> {
        let cut = CancellationToken::new();
        // Cuts all connections if the future of this function is dropped before it completes.
        let _cut = cut.clone().drop_guard();
        let terms = Terms {
            connections: limits.connections,
            access: self.access.clone(),
            tls: self.tls,
            preface: self.preface,
            cut: cut.clone(),
            counts: self.counts,
        };
        let signal = async {
            shutdown.await;
            self.health.not_serving().await;
            self.stopping.cancel();
            self.health.end().await;
        };
        self.health.serving().await;
        let guard = GuardCalls { longest: self.call, database: self.database };
        let serving = builder(limits, guard, self.access, self.budget)
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming(listener, terms), signal);
        let mut serving = pin!(serving);
        let late = async {
            self.stopping.cancelled().await;
            sleep(deadline).await;
        };
        let served = tokio::select! {
            served = &mut serving => served,
            () = late => {
                tracing::warn!(?deadline, "closing the connections that are still open at the deadline");
                cut.cancel();
                timeout(CUT, serving).await.unwrap_or(Ok(()))
            }
        };
        served.map_err(|error| Error::Internal(format!("the gRPC server failed: {error}")))
    }
}

/// Layers that every call passes, from the innermost to the outermost.
type Layers = Stack<ReceiveWithin, Stack<Authenticate, Stack<GuardCalls, Identity>>>;

/// Builds the server. Sets all limits for which tonic has no default.
fn builder(
    limits: &Limits,
    guard: GuardCalls,
    access: Option<Arc<Authenticator>>,
    budget: Arc<Budget>,
) -> transport::Server<Layers> {
    transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_adaptive_window(Some(false))
        .max_concurrent_streams(limits.streams_per_connection)
        .max_frame_size(FRAME_BYTES)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS))
        .http2_max_local_error_reset_streams(Some(ERROR_RESETS))
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .accept_http1(false)
        .layer(guard)
        .layer(Authenticate(access))
        .layer(ReceiveWithin(budget))
}

/// Routes to Howdah's services, health, and both versions of reflection. Any other path is UNIMPLEMENTED. Requests may be
/// gzipped: `receive` decompresses them, and a call whose message exceeds the size limit fails with `RESOURCE_EXHAUSTED`.
/// Responses are not gzipped: workers are on the same network, and gzip would cost more than it saves.
fn routes(stores: &SharedStores, health: &Health, stopping: &CancellationToken) -> Routes {
    let bytes = stores.main().config().limits.message_bytes;
    let gateway = Gateway::new(stores.clone(), stopping.clone());
    macro_rules! bounded {
        ($server:ident) => {
            $server::new(gateway.clone())
                .accept_compressed(CompressionEncoding::Gzip)
                .max_decoding_message_size(bytes)
                .max_encoding_message_size(bytes)
        };
    }
    let routes = Routes::new(bounded!(JobServiceServer))
        .add_service(bounded!(WorkerServiceServer))
        .add_service(bounded!(TaskTypeServiceServer))
        .add_service(bounded!(ScheduleServiceServer))
        .add_service(bounded!(SettingsServiceServer))
        .add_service(bounded!(AccessServiceServer))
        .add_service(bounded!(BulkServiceServer))
        .add_service(bounded!(StoreServiceServer));
    with_tools(routes, health)
}

/// Adds the services for health and reflection.
pub(super) fn with_tools(routes: Routes, health: &Health) -> Routes {
    tools::add_reflection(routes.add_service(health.service()))
}
