//! The metrics, for Prometheus. `docs/reference/metrics.md` is made of the names and texts of the registry.

mod archive; // finished jobs as files
mod jwt; // keys of issuers
mod latency; // histograms, with traces as exemplars
mod schedules; // whether they fire, the same for every broker
mod storage; // metrics of the tables, the same for every broker
mod tls; // certificate, handshakes
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
pub use storage::{ByTable, StorageMetrics};
pub use tls::{ByReason, TlsMetrics};
pub use traces::{TraceMetrics, Traced};

/// Labels of the numbers of jobs by type and state.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct TypeState {
    /// Task type.
    pub task_type: String,
    /// State.
    pub state: &'static str,
}

/// Label of metrics by type.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByType {
    /// Task type.
    pub task_type: String,
}

/// Label of settled jobs.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByOutcome {
    /// `ack`, `retry`, `dead`, `snooze`, `release`, `lost` or `lease_lost`.
    pub outcome: &'static str,
}

/// Counters of connections to the gRPC port. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCounts {
    /// Connections now.
    pub open: Gauge,
    /// Connections accepted since the start.
    pub accepted: Counter,
    /// Connections closed at once because there were too many.
    pub refused: Counter,
    /// Failed accepts, for example because file descriptors ran out.
    pub failed: Counter,
}

/// Label of refusals by a limit of one principal or address.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByLimit {
    /// The name of the limit, without `limits.`.
    pub limit: &'static str,
}

/// What was refused, by limit. Clones share it.
pub type Refusals = Family<ByLimit, Counter>;

/// All metrics of a broker.
pub struct Metrics {
    /// Jobs by type and state, as last counted.
    pub jobs: Family<TypeState, Gauge>,
    /// How long the oldest ready job of a type has been ready, in seconds.
    pub oldest_ready: Family<ByType, Gauge<f64, std::sync::atomic::AtomicU64>>,
    /// Workers that are subscribed to a type here.
    pub workers: Family<ByType, Gauge>,
    /// When jobs of a type were last called for without a stream, in seconds since 1970.
    pub last_pull: Family<ByType, Gauge>,
    /// Jobs stored.
    pub enqueued: Counter,
    /// Jobs stored and leased at once.
    pub direct: Counter,
    /// Jobs claimed.
    pub claimed: Counter,
    /// Claimed jobs released because they could not be sent.
    pub unsent: Counter,
    /// Jobs made ready because a limit key allowed them.
    pub admitted: Counter,
    /// Enqueues refused because a type's backlog was full.
    pub backlog_refusals: Counter,
    /// Jobs enqueued by schedules.
    pub scheduled: Counter,
    /// Attempts ended, by outcome.
    pub settled: Family<ByOutcome, Counter>,
    /// The sum of them; not shown.
    ended: Counter,
    /// Jobs in an intake statement.
    pub enqueue_batch: Histogram,
    /// Jobs in a claim.
    pub claim_batch: Histogram,
    /// Outcomes in a settle statement.
    pub settle_batch: Histogram,
    /// From an enqueue's arrival to its answer, in seconds.
    pub enqueue_latency: Histogram,
    /// From a job being ready to its claim, in seconds.
    pub pickup_latency: Latency,
    /// From a settle's arrival to its answer, in seconds.
    pub settle_latency: Latency,
    /// Calls refused because of who called.
    pub refused_calls: Family<ByReason, Counter>,
    /// Connections of clients.
    pub connections: ConnectionCounts,
    /// Open worker streams.
    pub sessions: Gauge,
    /// Leases that this broker's sessions hold.
    pub leases: Gauge,
    /// Connections of the hot pool.
    pub pool_open: Gauge,
    /// Of these, idle.
    pub pool_idle: Gauge,
    /// 1 while LISTEN works.
    pub listening: Gauge,
    /// Refused because of a limit of one principal or address.
    pub refusals: Refusals,
    /// Sweeps.
    pub sweeps: Counter,
    /// Statements that failed.
    pub store_errors: Counter,
    /// TLS of both ports.
    pub tls: TlsMetrics,
    /// Metrics of JSON Web Tokens.
    pub jwt: JwtMetrics,
    /// Spans.
    pub traces: TraceMetrics,
    /// Schedules.
    pub schedules: ScheduleMetrics,
    /// Of the archive.
    pub archive: ArchiveMetrics,
    /// The health of the storage.
    pub storage: StorageMetrics,
}

impl Metrics {
    /// All metrics at zero, without exemplars.
    pub fn new() -> Self {
        Self::with_exemplars(false)
    }

    /// All metrics at zero; latencies show traces, if that is wanted.
    pub fn with_exemplars(are_wanted: bool) -> Self {
        let batch = || Histogram::new(exponential_buckets(1.0, 2.0, 14));
        // 0.1 ms to 52 s.
        let seconds = || Histogram::new(exponential_buckets(0.0001, 2.0, 20));
        Self {
            jobs: Family::default(),
            oldest_ready: Family::default(),
            workers: Family::default(),
            last_pull: Family::default(),
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

    /// A registry with all metrics.
    pub fn registry(&self) -> Registry {
        self.registered(Registry::with_prefix("howdah"))
    }

    /// The same with a label for the store, where there are several.
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
            "How long the first ready job of the type has been ready; 0: none is",
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
            "When jobs of the type were last pulled at any broker (PullJobs), as seconds since 1970, to some 35 s; only types that are pulled",
            Unit::Seconds,
            self.last_pull.clone(),
        );
        r.register("enqueued", "Jobs stored", self.enqueued.clone());
        r.register(
            "direct",
            "Jobs enqueued directly to a worker: stored and leased at once, without a claim",
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
        r.register("enqueue_batch_jobs", "Jobs that were stored together", self.enqueue_batch.clone());
        r.register("claim_batch_jobs", "Jobs that were claimed together", self.claim_batch.clone());
        r.register("settle_batch_jobs", "Outcomes that were written together", self.settle_batch.clone());
        r.register_with_unit(
            "enqueue_latency",
            "From the arrival of a request to its answer",
            Unit::Seconds,
            self.enqueue_latency.clone(),
        );
        self.pickup_latency.register(&mut r, "pickup_latency", "From a job being ready to its claim");
        self.settle_latency.register(&mut r, "settle_latency", "From the arrival of outcomes to their answer");
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
            "Connections closed at once because limits.connections was reached",
            connections.refused.clone(),
        );
        r.register(
            "accept_errors",
            "Failures to accept a connection, as when file descriptors ran out",
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
        r.register(
            "sweeps",
            "Times the tables were searched for work that no notification told of",
            self.sweeps.clone(),
        );
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

    /// How much has happened that statistics count: another number means that something has.
    pub fn changes(&self) -> u64 {
        self.enqueued.get() + self.ended.get()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
