//! Prometheus metrics. `docs/reference/metrics.md` is generated from the metrics' names and help texts.

mod archive; // archive of finished jobs
mod jwt; // keys of JSON Web Token issuers
mod latency; // histograms with exemplars
mod schedules; // schedules, equal for every broker
mod storage; // tables, equal for every broker
mod tls; // certificate and handshakes
mod traces; // spans

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

pub use archive::ArchiveMetrics;
pub use jwt::{ByIssuer, JwtMetrics};
pub use latency::Latency;
pub use schedules::ScheduleMetrics;
pub use storage::{ByCheck, ByTable, StorageMetrics};
pub use tls::{ByReason, TlsMetrics};
pub use traces::{TraceMetrics, Traced};

/// Labels of job counts by type and state.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct TypeState {
    /// Task type.
    pub task_type: String,
    /// State.
    pub state: &'static str,
}

/// Label of metrics per type.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByType {
    /// Task type.
    pub task_type: String,
}

/// Label of ended attempts: how the attempt ended.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByOutcome {
    /// `ack`, `retry`, `dead`, `snooze`, `release`, `lost` or `lease_lost`.
    pub outcome: &'static str,
}

/// Metrics of connections to the gRPC port. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCounts {
    /// Open connections.
    pub open: Gauge,
    /// Connections accepted since the start.
    pub accepted: Counter,
    /// Connections closed immediately because of the connection limit.
    pub refused: Counter,
    /// Failed accepts, for example because of exhausted file descriptors.
    pub failed: Counter,
}

/// Label of rejections by a limit of one principal or address.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByLimit {
    /// Name of the limit, without `limits.`.
    pub limit: &'static str,
}

/// Number of rejected requests by limit. Clones share the counters.
pub type Refusals = Family<ByLimit, Counter>;

/// Metrics of a broker.
pub struct Metrics {
    /// Number of jobs by task type and state, from the last count.
    pub jobs: Family<TypeState, Gauge>,
    /// Age of the oldest ready job of a type, in seconds.
    pub oldest_ready: Family<ByType, Gauge<f64, std::sync::atomic::AtomicU64>>,
    /// Number of this broker's workers that are subscribed to a task type.
    pub workers: Family<ByType, Gauge>,
    /// Last time at which a client without a stream pulled jobs of a task type, in seconds of Unix time.
    pub last_pull: Family<ByType, Gauge>,
    /// 1 while a task type is braked; only for types with a brake.
    pub braked: Family<ByType, Gauge>,
    /// Enqueued jobs.
    pub enqueued: Counter,
    /// Number of jobs that were enqueued and leased in one statement.
    pub direct: Counter,
    /// Claimed jobs.
    pub claimed: Counter,
    /// Number of claimed jobs that were released because they could not be sent to a worker.
    pub unsent: Counter,
    /// Number of jobs that became ready because their limit key allowed it.
    pub admitted: Counter,
    /// Number of enqueued jobs rejected because of a full backlog.
    pub backlog_refusals: Counter,
    /// Number of jobs enqueued by schedules.
    pub scheduled: Counter,
    /// Number of ended attempts by outcome.
    pub settled: Family<ByOutcome, Counter>,
    /// Total number of ended attempts; not exported.
    ended: Counter,
    /// Number of jobs per enqueue statement.
    pub enqueue_batch: Histogram,
    /// Jobs per claim.
    pub claim_batch: Histogram,
    /// Number of outcomes per settle statement.
    pub settle_batch: Histogram,
    /// Time from the arrival of an enqueue request to its response, in seconds.
    pub enqueue_latency: Histogram,
    /// Time from a job being ready to its claim, in seconds.
    pub pickup_latency: Latency,
    /// Time from the arrival of outcomes to their response, in seconds.
    pub settle_latency: Latency,
    /// Number of calls rejected by authentication or authorization.
    pub refused_calls: Family<ByReason, Counter>,
    /// Connections of clients.
    pub connections: ConnectionCounts,
    /// Open worker streams.
    pub sessions: Gauge,
    /// Number of leases that this broker's sessions hold.
    pub leases: Gauge,
    /// Number of open connections in the main connection pool.
    pub pool_open: Gauge,
    /// Number of idle connections in the main connection pool.
    pub pool_idle: Gauge,
    /// 1 while the LISTEN connection works.
    pub listening: Gauge,
    /// Number of requests rejected by a limit of one principal or address.
    pub refusals: Refusals,
    /// Number of sweeps.
    pub sweeps: Counter,
    /// Failed statements.
    pub store_errors: Counter,
    /// TLS metrics of both ports.
    pub tls: TlsMetrics,
    /// JSON Web Token metrics.
    pub jwt: JwtMetrics,
    /// Span metrics.
    pub traces: TraceMetrics,
    /// Schedule metrics.
    pub schedules: ScheduleMetrics,
    /// Archive metrics.
    pub archive: ArchiveMetrics,
    /// Storage metrics.
    pub storage: StorageMetrics,
}

impl Metrics {
    /// Creates all metrics at zero, without exemplars.
    pub fn new() -> Self {
        Self::with_exemplars(false)
    }

    /// Creates all metrics at zero, optionally with exemplars in the latencies.
    pub fn with_exemplars(are_wanted: bool) -> Self {
        let batch = || Histogram::new(exponential_buckets(1.0, 2.0, 14));
        // Buckets from 0.1 ms to 52 s.
        let seconds = || Histogram::new(exponential_buckets(0.0001, 2.0, 20));
        Self {
            jobs: Family::default(),
            oldest_ready: Family::default(),
            workers: Family::default(),
            last_pull: Family::default(),
            braked: Family::default(),
            enqueued: Counter::default(),
            direct: Counter::default(),
            claimed: Counter::default(),
            unsent: Counter::default(),
            admitted: Counter::default(),
            backlog_refusals: Counter::default(),
            scheduled: Counter::default(),
            settled: Family::default(),
            ended: Counter::default(),
            enqueue_batch: batch(),
            claim_batch: batch(),
            settle_batch: batch(),
            enqueue_latency: seconds(),
            pickup_latency: Latency::new(are_wanted),
            settle_latency: Latency::new(are_wanted),
            refused_calls: Family::default(),
            connections: ConnectionCounts::default(),
            sessions: Gauge::default(),
            leases: Gauge::default(),
            pool_open: Gauge::default(),
            pool_idle: Gauge::default(),
            listening: Gauge::default(),
            refusals: Refusals::default(),
            sweeps: Counter::default(),
            store_errors: Counter::default(),
            tls: TlsMetrics::default(),
            jwt: JwtMetrics::default(),
            traces: TraceMetrics::default(),
            schedules: ScheduleMetrics::default(),
            archive: ArchiveMetrics::default(),
            storage: StorageMetrics::default(),
        }
    }

    /// Creates a registry with all metrics.
    pub fn registry(&self) -> Registry {
        self.registered(Registry::with_prefix("howdah"))
    }

    /// Creates a registry with all metrics and a label for the store, for brokers with several stores.
    pub fn registry_of_store(&self, name: &str) -> Registry {
        let label = ("store".into(), name.to_owned().into());
        self.registered(Registry::with_prefix_and_labels("howdah", std::iter::once(label)))
    }

    fn registered(&self, mut r: Registry) -> Registry {
        r.register(
            "jobs",
            "Jobs that are ready, leased, scheduled, waiting or dead; counted every 15 s, less often when counting is slow",
            self.jobs.clone(),
        );
        r.register_with_unit(
            "oldest_ready_age",
            "Age of the oldest ready job of the type; 0 without ready jobs",
            Unit::Seconds,
            self.oldest_ready.clone(),
        );
        r.register(
            "workers",
            "Workers of a type at this broker: streams that are subscribed to it, and calls that wait for its jobs",
            self.workers.clone(),
        );
        r.register_with_unit(
            "last_pull_timestamp",
            "Unix time of the last PullJobs for the type at any broker, accurate to about 35 s; only for types with such calls",
            Unit::Seconds,
            self.last_pull.clone(),
        );
        r.register(
            "braked",
            "1 while the type is braked after failed attempts in a row, at all brokers; only for types with a brake",
            self.braked.clone(),
        );
        r.register("enqueued", "Jobs stored", self.enqueued.clone());
        r.register(
            "direct",
            "Jobs enqueued directly to a worker: stored and leased in one step, without a claim",
            self.direct.clone(),
        );
        r.register("claimed", "Jobs claimed", self.claimed.clone());
        r.register(
            "unsent",
            "Claimed jobs that were released because they could not be written to a worker",
            self.unsent.clone(),
        );
        r.register("admitted", "Jobs that became ready when their limit key allowed it", self.admitted.clone());
        r.register(
            "backlog_refusals",
            "Enqueues refused because the backlog of a type was full",
            self.backlog_refusals.clone(),
        );
        r.register("scheduled", "Jobs enqueued by schedules", self.scheduled.clone());
        r.register("settled", "Attempts ended, by outcome", self.settled.clone());
        r.register("enqueue_batch_jobs", "Jobs stored per enqueue statement", self.enqueue_batch.clone());
        r.register("claim_batch_jobs", "Jobs claimed per statement", self.claim_batch.clone());
        r.register("settle_batch_jobs", "Outcomes written per settle statement", self.settle_batch.clone());
        r.register_with_unit(
            "enqueue_latency",
            "Time from the arrival of an enqueue request to its answer",
            Unit::Seconds,
            self.enqueue_latency.clone(),
        );
        self.pickup_latency.register(&mut r, "pickup_latency", "Time from when a job becomes ready to its claim");
        self.settle_latency.register(&mut r, "settle_latency", "Time from the arrival of outcomes to their answer");
        r.register(
            "refused_calls",
            "Calls of both ports that were refused: unauthenticated, permission_denied",
            self.refused_calls.clone(),
        );
        let connections = &self.connections;
        r.register("connections", "Open connections of clients", connections.open.clone());
        r.register("connections_accepted", "Connections accepted", connections.accepted.clone());
        r.register(
            "connections_refused",
            "Connections closed immediately because limits.connections was reached",
            connections.refused.clone(),
        );
        r.register(
            "accept_errors",
            "Failures to accept a connection, for example because file descriptors ran out",
            connections.failed.clone(),
        );
        r.register("sessions", "Open worker streams", self.sessions.clone());
        r.register("leases", "Leases held by this broker's sessions", self.leases.clone());
        r.register("pool_connections", "Open connections to Postgres for jobs", self.pool_open.clone());
        r.register("pool_idle_connections", "Idle connections to Postgres for jobs", self.pool_idle.clone());
        r.register("listening", "1 while the LISTEN connection is up; 0 in poll mode", self.listening.clone());
        r.register(
            "limit_refusals",
            "Requests, streams, connections and credentials refused because of a limit of one principal or address",
            self.refusals.clone(),
        );
        r.register("sweeps", "Sweeps: searches of the tables for work without a notification", self.sweeps.clone());
        r.register("store_errors", "Statements that failed", self.store_errors.clone());
        self.tls.register(&mut r);
        self.jwt.register(&mut r);
        self.traces.register(&mut r);
        self.schedules.register(&mut r);
        self.archive.register(&mut r);
        self.storage.register(&mut r);
        r
    }

    /// Counts ended attempts.
    pub fn count_settled(&self, outcome: &'static str, n: usize) {
        if n > 0 {
            self.settled.get_or_create(&ByOutcome { outcome }).inc_by(n as u64);
            self.ended.inc_by(n as u64);
        }
    }

    /// Number of events so far that concern statistics. If the number has changed, there are new events.
    pub fn changes(&self) -> u64 {
        self.enqueued.get() + self.ended.get()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
