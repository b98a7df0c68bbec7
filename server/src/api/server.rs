//! The gRPC server: which services, within which bounds, and how it ends.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use howdah_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{
        job_service_server::JobServiceServer, schedule_service_server::ScheduleServiceServer,
        settings_service_server::SettingsServiceServer, task_type_service_server::TaskTypeServiceServer,
        worker_service_server::WorkerServiceServer,
    },
};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{codec::CompressionEncoding, service::Routes, transport};
use tonic_reflection::server::Builder as Reflection;
use tower::layer::util::{Identity, Stack};

use super::{
    calls::GuardCalls,
    health::Health,
    incoming::{Terms, incoming},
    job_service::JobService,
    receive::{Budget, Patience, ReceiveWithin},
    schedule_service::ScheduleService,
    settings_service::SettingsService,
    task_type_service::TaskTypeService,
    worker_service::WorkerService,
};
use crate::{broker::SharedBroker, error::Error, job::Limits, metrics::ConnectionCounts};

/// Bytes of one stream that may be on their way or unread: a whole batch of small jobs fits, so that it
/// takes no round trip more. Not larger: h2 counts small DATA frames that pile up unread, against half
/// of the connection's window at some 230 bytes a frame, and ends the connection beyond. With these two
/// one stream of the smallest messages, while nobody reads, is stopped by flow control first.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// The same for a connection: what one connection can make the broker hold unread is bounded. Both are
/// fixed: hyper's adaptive window overrides them and grows without a bound of ours.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// HTTP/2's smallest maximum: frames of many streams interleave, and an unfinished one holds little.
const FRAME_BYTES: u32 = 16 << 10;
/// Headers of a call. A token and a trace context have room; a CONTINUATION flood has not.
pub(crate) const HEADER_BYTES: u32 = 16 << 10;
/// Streams that were reset before we looked at them. More is a reset flood: the connection ends.
pub(crate) const PENDING_RESETS: usize = 100;
/// Streams that we reset for the peer's errors, in the life of a connection; as hyper has it.
const ERROR_RESETS: usize = 1024;
/// A peer that does not answer a ping for so long is gone; with the interval, within 15 s.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How often peers are pinged.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long a connection may take to begin.
pub(crate) const PREFACE: Duration = Duration::from_secs(5);
/// How long a call may take, its request included: longer than `PullJobs` waits and Postgres may
/// take. Streams are not meant: for them it ends with the headers.
pub(crate) const CALL: Duration = Duration::from_mins(2);
/// A large message waits so long for room, then has so long to arrive: slow networks carry 1 MiB a second.
/// As long as a call, nobody keeps room without a reason of ours.
pub(crate) const PATIENCE: Patience = Patience {
    room: Duration::from_secs(10),
    message: Duration::from_secs(5),
    mib: Duration::from_secs(1),
    held: CALL,
};
/// Reflection asks for names.
const REFLECTION_BYTES: usize = 16 << 10;
/// How long connections that were cut off may take to notice.
const CUT: Duration = Duration::from_secs(1);

/// A gRPC server for a broker.
pub struct Server {
    broker: SharedBroker,
    health: Health,
}

impl Server {
    /// A server that does not serve yet; until then, and when it stops, `health` says so.
    pub fn new(broker: SharedBroker, health: Health) -> Self {
        Self { broker, health }
    }

    /// Serves until `shutdown` is ready, then stops within `deadline` and a second.
    ///
    /// Stopping: health says `NOT_SERVING`, the listener is closed, connections are told to open no
    /// more streams, pipelines end after what is in flight. (The sessions of workers are ended by the
    /// broker; begin to drain it before, or with, `shutdown`.) Those still there at the deadline, and
    /// peers that never spoke, are cut off.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
        deadline: Duration,
    ) -> Result<(), Error> {
        let stopping = CancellationToken::new();
        let routes = routes(&self.broker, &self.health, &stopping)?;
        let limits = &self.broker.config().limits;
        let edge = Edge {
            health: self.health,
            stopping,
            counts: self.broker.metrics().connections.clone(),
            preface: PREFACE,
            call: CALL,
            patience: PATIENCE,
        };
        edge.serve(listener, routes, limits, shutdown, deadline).await
    }
}

/// What stands between the network and the services, whichever these are.
pub(super) struct Edge {
    pub(super) health: Health,
    /// Cancelled when it begins to stop.
    pub(super) stopping: CancellationToken,
    pub(super) counts: ConnectionCounts,
    pub(super) preface: Duration,
    pub(super) call: Duration,
    pub(super) patience: Patience,
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
        // Whoever drops this future instead of ending it leaves no connection behind either.
        let _cut = cut.clone().drop_guard();
        let terms =
            Terms { connections: limits.connections, preface: self.preface, cut: cut.clone(), counts: self.counts };
        let signal = async {
            shutdown.await;
            self.health.not_serving().await;
            self.stopping.cancel();
            self.health.end().await;
        };
        self.health.serving().await;
        let budget = Arc::new(Budget::new(limits, self.patience));
        let serving = builder(limits, self.call, budget)
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
                tracing::warn!(?deadline, "cutting off the connections that are left");
                cut.cancel();
                timeout(CUT, serving).await.unwrap_or(Ok(()))
            }
        };
        served.map_err(|error| Error::Internal(format!("the gRPC server failed: {error}")))
    }
}

/// What every call passes through, the first last.
type Layers = Stack<ReceiveWithin, Stack<GuardCalls, Identity>>;

/// Every bound that tonic leaves off.
fn builder(limits: &Limits, call: Duration, budget: Arc<Budget>) -> transport::Server<Layers> {
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
        .layer(GuardCalls(call))
        .layer(ReceiveWithin(budget))
}

/// Our services, health, and reflection in both versions; anything else is UNIMPLEMENTED. Requests
/// may be gzipped: tonic stops unpacking at the decoding limit, so a bomb is `RESOURCE_EXHAUSTED`.
/// Answers are not: jobs go to workers on the same network, and gzip would cost more than it saves.
fn routes(broker: &SharedBroker, health: &Health, stopping: &CancellationToken) -> Result<Routes, Error> {
    let bytes = broker.config().limits.message_bytes;
    let jobs = JobServiceServer::new(JobService::new(broker.clone(), stopping.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let workers = WorkerServiceServer::new(WorkerService::new(broker.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let types = TaskTypeServiceServer::new(TaskTypeService::new(broker.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let schedules = ScheduleServiceServer::new(ScheduleService::new(broker.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let settings = SettingsServiceServer::new(SettingsService::new(broker.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let routes = Routes::new(jobs).add_service(workers).add_service(types).add_service(schedules).add_service(settings);
    with_tools(routes, health)
}

/// Health and reflection.
pub(super) fn with_tools(routes: Routes, health: &Health) -> Result<Routes, Error> {
    let reflection = || {
        Reflection::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // No method names them, but the details of our errors are made of them.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let failed = |error| Error::Internal(format!("the descriptors for reflection: {error}"));
    let v1 = reflection().build_v1().map_err(failed)?.max_decoding_message_size(REFLECTION_BYTES);
    let v1alpha = reflection().build_v1alpha().map_err(failed)?.max_decoding_message_size(REFLECTION_BYTES);
    Ok(routes.add_service(health.service()).add_service(v1).add_service(v1alpha))
}
