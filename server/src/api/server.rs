//! The gRPC server: its services, its bounds, and how it stops.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use howdah_proto::v1::{
    access_service_server::{AccessService as AccessServices, AccessServiceServer},
    bulk_service_server::{BulkService as BulkServices, BulkServiceServer},
    job_service_server::{JobService as JobServices, JobServiceServer},
    schedule_service_server::{ScheduleService as ScheduleServices, ScheduleServiceServer},
    settings_service_server::{SettingsService as SettingsServices, SettingsServiceServer},
    store_service_server::{StoreService as StoreServices, StoreServiceServer},
    task_type_service_server::{TaskTypeService as TaskTypeServices, TaskTypeServiceServer},
    worker_service_server::{WorkerService as WorkerServices, WorkerServiceServer},
};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{codec::CompressionEncoding, codegen::http::HeaderValue, service::Routes, transport};
use tower::layer::util::{Identity, Stack};

use super::{
    access_service::AccessService,
    answer::TAKEN_WITHIN,
    authenticate::Authenticate,
    bulk_service::BulkService,
    calls::GuardCalls,
    fleet::FleetService,
    health::Health,
    incoming::{Terms, incoming},
    job_service::JobService,
    receive::{Budget, Patience, ReceiveWithin},
    reflection,
    schedule_service::ScheduleService,
    settings_service::SettingsService,
    store_service::StoreService,
    task_type_service::TaskTypeService,
    worker_service::WorkerService,
};
use crate::{access::Access, error::Error, job::Limits, metrics::ConnectionCounts, stores::SharedFleet, tls::TlsPort};

/// Bytes of one stream that may be in flight or unread. A whole batch of small jobs fits, so it takes no further round
/// trip. It must not be larger: h2 counts small DATA frames that pile up unread, with about 230 bytes per frame, and
/// ends the connection when they exceed half of its window. With these two values, flow control first stops a stream of
/// the smallest messages that nobody reads.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// The same for a connection. It bounds what one connection can make the broker hold unread. Both values are fixed:
/// hyper's adaptive window would override them, and has no bound of ours.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// The smallest value that HTTP/2 allows: frames of many streams interleave, and an unfinished frame holds little
/// memory.
const FRAME_BYTES: u32 = 16 << 10;
/// The largest headers of a call. A token and a trace context fit; a flood of CONTINUATION frames does not.
pub(crate) const HEADER_BYTES: u32 = 16 << 10;
/// Streams that were reset before we handled them. With more, which is a reset flood, the connection ends.
pub(crate) const PENDING_RESETS: usize = 100;
/// Streams that we reset because of errors of the peer, in the life of a connection. This is hyper's default.
const ERROR_RESETS: usize = 1024;
/// A peer that does not answer a ping within this time is gone. With the interval, it is noticed within 15 s.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How often peers are pinged.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long a peer may take to send the HTTP/2 preface.
pub(crate) const PREFACE: Duration = Duration::from_secs(5);
/// How long a call may take, its request included. This is longer than `PullJobs` waits and Postgres may take. For
/// streams it only applies to the headers.
pub(crate) const CALL: Duration = Duration::from_mins(2);
/// How long a message may wait for memory, and how long it may take to arrive: slow networks carry 1 MiB per second. It is
/// at most the time of a call, so no call holds memory for longer than it may last.
pub(crate) const PATIENCE: Patience = Patience {
    room: Duration::from_secs(10),
    message: Duration::from_secs(5),
    mib: Duration::from_secs(1),
    held: CALL,
    end: Duration::from_secs(5),
    answer: TAKEN_WITHIN,
};
/// How long closing takes at most for connections that were cut.
const CUT: Duration = Duration::from_secs(1);

/// A gRPC server for the brokers of a process.
pub struct Server {
    fleet: SharedFleet,
    health: Health,
    tls: Option<Arc<TlsPort>>,
}

impl Server {
    /// A server that does not serve yet. `health` says so until it serves, and again when it stops.
    pub fn new(fleet: SharedFleet, health: Health) -> Self {
        Self { fleet, health, tls: None }
    }

    /// With TLS, if there is any.
    pub(crate) fn with_tls(self, tls: Option<Arc<TlsPort>>) -> Self {
        Self { tls, ..self }
    }

    /// Serves until `shutdown` is ready, then stops within `deadline` and a second.
    ///
    /// To stop, health becomes `NOT_SERVING`, the listener is closed, connections are told to open no more streams, and
    /// pipelines end after the requests in flight. (The broker ends the sessions of workers: start to drain it before
    /// or with `shutdown`.) Connections that are left at the deadline, and peers that never sent anything, are cut.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
        deadline: Duration,
    ) -> Result<(), Error> {
        let stopping = CancellationToken::new();
        let broker = self.fleet.main();
        let routes = routes(&self.fleet, &self.health, &stopping);
        let limits = &broker.config().limits;
        let edge = Edge {
            health: self.health,
            access: Some(broker.access.clone()),
            stopping,
            counts: broker.metrics().connections.clone(),
            database: HeaderValue::from_str(&broker.database_id).ok(),
            tls: self.tls,
            preface: PREFACE,
            call: CALL,
            budget: Arc::new(Budget::new(limits, PATIENCE)),
        };
        edge.serve(listener, routes, limits, shutdown, deadline).await
    }
}

/// Everything between the network and the services.
pub(super) struct Edge {
    pub(super) health: Health,
    /// Who may call; `None`: everybody.
    pub(super) access: Option<Arc<Access>>,
    /// Cancelled when the server starts to stop.
    pub(super) stopping: CancellationToken,
    pub(super) counts: ConnectionCounts,
    /// The id of the database.
    pub(super) database: Option<HeaderValue>,
    pub(super) tls: Option<Arc<TlsPort>>,
    pub(super) preface: Duration,
    pub(super) call: Duration,
    pub(super) budget: Arc<Budget>,
}

impl Edge {
    /// As [`Server::serve`].
    pub(super) async fn serve(
        self,
        listener: TcpListener,
        routes: Routes,
        limits: &Limits,
        shutdown: impl Future<Output = ()>,
        deadline: Duration,
    ) -> Result<(), Error> {
        let cut = CancellationToken::new();
        // If this future is dropped before its end, no connection is left open either.
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
                tracing::warn!(?deadline, "cutting the connections that are left");
                cut.cancel();
                timeout(CUT, serving).await.unwrap_or(Ok(()))
            }
        };
        served.map_err(|error| Error::Internal(format!("the gRPC server failed: {error}")))
    }
}

/// The layers of every call, the first one last.
type Layers = Stack<ReceiveWithin, Stack<Authenticate, Stack<GuardCalls, Identity>>>;

/// Sets every bound that tonic leaves open.
fn builder(
    limits: &Limits,
    guard: GuardCalls,
    access: Option<Arc<Access>>,
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

/// Our services, health, and reflection in both versions. Any other path is UNIMPLEMENTED. Requests may be gzipped:
/// tonic stops unpacking at the decoding limit, so a bomb is `RESOURCE_EXHAUSTED`. Answers are not gzipped: workers are
/// on the same network, and gzip would cost more than it saves.
fn routes(fleet: &SharedFleet, health: &Health, stopping: &CancellationToken) -> Routes {
    let bytes = fleet.main().config().limits.message_bytes;
    let routes = if let Some(broker) = fleet.only() {
        of_services(
            JobService::new(broker.clone(), stopping.clone()),
            WorkerService::new(broker.clone()),
            TaskTypeService::new(broker.clone()),
            ScheduleService::new(broker.clone()),
            SettingsService::new(broker.clone()),
            AccessService::new(broker.clone()),
            BulkService::new(broker.clone()),
            StoreService::new(fleet.clone(), stopping.clone()),
            bytes,
        )
    } else {
        let all = || FleetService::new(fleet.clone(), stopping.clone());
        of_services(
            all(),
            all(),
            all(),
            all(),
            all(),
            all(),
            all(),
            StoreService::new(fleet.clone(), stopping.clone()),
            bytes,
        )
    };
    with_tools(routes, health)
}

/// Routes to these services, with the bounds of messages.
#[allow(clippy::too_many_arguments, reason = "one for each service")]
fn of_services(
    jobs: impl JobServices,
    workers: impl WorkerServices,
    types: impl TaskTypeServices,
    schedules: impl ScheduleServices,
    settings: impl SettingsServices,
    access: impl AccessServices,
    bulks: impl BulkServices,
    stores: impl StoreServices,
    bytes: usize,
) -> Routes {
    macro_rules! bounded {
        ($server:ident, $service:ident) => {
            $server::new($service)
                .accept_compressed(CompressionEncoding::Gzip)
                .max_decoding_message_size(bytes)
                .max_encoding_message_size(bytes)
        };
    }
    Routes::new(bounded!(JobServiceServer, jobs))
        .add_service(bounded!(WorkerServiceServer, workers))
        .add_service(bounded!(TaskTypeServiceServer, types))
        .add_service(bounded!(ScheduleServiceServer, schedules))
        .add_service(bounded!(SettingsServiceServer, settings))
        .add_service(bounded!(AccessServiceServer, access))
        .add_service(bounded!(BulkServiceServer, bulks))
        .add_service(bounded!(StoreServiceServer, stores))
}

/// Health and reflection.
pub(super) fn with_tools(routes: Routes, health: &Health) -> Routes {
    reflection::add(routes.add_service(health.service()))
}
