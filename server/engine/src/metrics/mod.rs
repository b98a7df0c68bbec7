//! Prometheus metrics. `docs/reference/metrics.md` is generated from the metrics' names and help texts.

mod histogram; // distributions of latencies and of batch sizes

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

pub use histogram::{BatchSize, Latency, Traced};

/// Declares the metrics of a group: field, type, name, unit and help text, which also documents the field. A field without
/// a name is a group itself. A field in `unexported` is no metric.
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        pub struct $group:ident {
            $($field:ident: $kind:ty $(= $name:literal $(in $unit:ident)?, $help:literal)?;)*
        }
        $(unexported { $hidden:ident: $hidden_kind:ty })?
    ) => {
        $(#[$meta])*
        #[allow(clippy::doc_markdown, reason = "help texts are plain text")]
        pub struct $group {
            $($(#[doc = $help])? pub $field: $kind,)*
            $($hidden: $hidden_kind,)?
        }

        impl $group {
            /// Adds the metrics of the group to the registry.
            pub fn register(&self, r: &mut Registry) {
                $(metrics!(@register r, self.$field $(, $name $(in $unit)?, $help)?);)*
            }
        }
    };
    (@register $r:ident, $metric:expr) => { $metric.register($r) };
    (@register $r:ident, $metric:expr, $name:literal, $help:literal) => { $r.register($name, $help, $metric.clone()) };
    (@register $r:ident, $metric:expr, $name:literal in $unit:ident, $help:literal) => {
        $r.register_with_unit($name, $help, Unit::$unit, $metric.clone())
    };
}

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

/// Label of rejections by a limit of one principal or address.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByLimit {
    /// Name of the limit, without `limits.`.
    pub limit: &'static str,
}

/// Label with the reason of a failed TLS handshake, a rejected call or a dropped span.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByReason {
    /// Reason. For calls `unauthenticated` or `permission_denied`; for spans `collector`, `queue` or `attempts`; for
    /// handshakes `closed`, `timeout`, `plaintext`, `alpn`, `client_certificate` or `other`.
    pub reason: &'static str,
}

/// Label of metrics per issuer.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByIssuer {
    /// Name of the issuer in the file of issuers.
    pub issuer: String,
}

/// Label of metrics per table.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByTable {
    /// Table name: `ready`, `leased`, `scheduled` or `waiting`. For sizes also `dead`, `history`, `payload`, `audit` or
    /// `other`.
    pub table: &'static str,
}

/// Labels of findings.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByCheck {
    /// Name of the check, as `howdah doctor` prints it.
    pub check: &'static str,
    /// `problem` or `advice`.
    pub level: &'static str,
}

/// Number of rejected requests by limit. Clones share the counters.
pub type Refusals = Family<ByLimit, Counter>;

/// A gauge with fractions.
type Fraction = Gauge<f64, AtomicU64>;

metrics! {
    /// Metrics of a broker.
    #[derive(Default)]
    pub struct Metrics {
        jobs: Family<TypeState, Gauge> = "jobs",
            "Jobs that are ready, leased, scheduled, waiting or dead; counted every 15 s, less often when counting is slow";
        oldest_ready: Family<ByType, Fraction> = "oldest_ready_age" in Seconds,
            "Age of the oldest ready job of the type; 0 without ready jobs";
        workers: Family<ByType, Gauge> = "workers",
            "Workers of a type at this broker: streams that are subscribed to it, and calls that wait for its jobs";
        last_pull: Family<ByType, Gauge> = "last_pull_timestamp" in Seconds,
            "Unix time of the last PullJobs for the type at any broker, accurate to about 35 s; only for types with such calls";
        braked: Family<ByType, Gauge> = "braked",
            "1 while the type is braked after failed attempts in a row, at all brokers; only for types with a brake";
        enqueued: Counter = "enqueued", "Jobs stored";
        direct: Counter = "direct",
            "Jobs enqueued directly to a worker: stored and leased in one step, without a claim";
        claimed: Counter = "claimed", "Jobs claimed";
        unsent: Counter = "unsent", "Claimed jobs that were released because they could not be written to a worker";
        admitted: Counter = "admitted", "Jobs that became ready when their limit key allowed it";
        backlog_refusals: Counter = "backlog_refusals", "Enqueues refused because the backlog of a type was full";
        scheduled: Counter = "scheduled", "Jobs enqueued by schedules";
        settled: Family<ByOutcome, Counter> = "settled", "Attempts ended, by outcome";
        enqueue_batch: BatchSize = "enqueue_batch_jobs", "Jobs stored per enqueue statement";
        claim_batch: BatchSize = "claim_batch_jobs", "Jobs claimed per statement";
        settle_batch: BatchSize = "settle_batch_jobs", "Outcomes written per settle statement";
        enqueue_latency: Latency = "enqueue_latency" in Seconds, "Time from the arrival of an enqueue request to its answer";
        pickup_latency: Latency = "pickup_latency" in Seconds, "Time from when a job becomes ready to its claim";
        settle_latency: Latency = "settle_latency" in Seconds, "Time from the arrival of outcomes to their answer";
        refused_calls: Family<ByReason, Counter> = "refused_calls",
            "Calls of both ports that were refused: unauthenticated, permission_denied";
        connections: ConnectionCounts;
        sessions: Gauge = "sessions", "Open worker streams";
        leases: Gauge = "leases", "Leases held by this broker's sessions";
        pool_open: Gauge = "pool_connections", "Open connections to Postgres for jobs";
        pool_idle: Gauge = "pool_idle_connections", "Idle connections to Postgres for jobs";
        listening: Gauge = "listening", "1 while the LISTEN connection is up; 0 in poll mode";
        refusals: Refusals = "limit_refusals",
            "Requests, streams, connections and credentials refused because of a limit of one principal or address";
        sweeps: Counter = "sweeps", "Sweeps: searches of the tables for work without a notification";
        store_errors: Counter = "store_errors", "Statements that failed";
        tls: TlsMetrics;
        jwt: JwtMetrics;
        traces: TraceMetrics;
        schedules: ScheduleMetrics;
        archive: ArchiveMetrics;
        storage: StorageMetrics;
    }
    unexported { ended: Counter }
}

metrics! {
    /// Metrics of connections to the gRPC port. Clones share them.
    #[derive(Clone, Debug, Default)]
    pub struct ConnectionCounts {
        open: Gauge = "connections", "Open connections of clients";
        accepted: Counter = "connections_accepted", "Connections accepted";
        refused: Counter = "connections_refused", "Connections closed immediately because limits.connections was reached";
        failed: Counter = "accept_errors",
            "Failures to accept a connection, for example because file descriptors ran out";
    }
}

metrics! {
    /// Metrics of TLS on both ports. Clones share them.
    #[derive(Clone, Debug, Default)]
    pub struct TlsMetrics {
        expires: Gauge = "tls_certificate_expires" in Seconds,
            "When the broker's certificate expires, in Unix time; 0: the broker serves without TLS";
        reloads: Counter = "tls_reloads", "Changed TLS files that were activated";
        reload_failures: Counter = "tls_reload_failures",
            "Changed TLS files that were invalid, so that the old ones stayed active";
        failed_handshakes: Family<ByReason, Counter> = "tls_handshake_failures",
            "Connections closed without a TLS handshake: closed (by the client), timeout, plaintext, alpn, client_certificate, other";
    }
}

metrics! {
    /// Metrics of reading the public keys of JSON Web Token issuers. Clones share them.
    #[derive(Clone, Debug, Default)]
    pub struct JwtMetrics {
        key_reads: Family<ByIssuer, Counter> = "jwt_key_reads", "Reads of the keys of an issuer of JSON Web Tokens";
        key_read_failures: Family<ByIssuer, Counter> = "jwt_key_read_failures",
            "Failed reads of an issuer's keys; the known keys stay valid";
        keys_read_at: Family<ByIssuer, Gauge> = "jwt_keys_read_at" in Seconds,
            "When the keys of an issuer were last read, in Unix time";
    }
}

metrics! {
    /// Metrics of spans. Clones share them.
    #[derive(Clone, Debug, Default)]
    pub struct TraceMetrics {
        exported: Counter = "spans_exported", "Spans that the collector of traces has taken";
        dropped: Family<ByReason, Counter> = "spans_dropped",
            "Spans that were dropped: collector (it did not take them), queue (too many waited for it), attempts (too many \
             sampled attempts at once)";
    }
}

metrics! {
    /// Metrics of schedules as last read from the database, equal for every broker.
    #[derive(Default)]
    pub struct ScheduleMetrics {
        delay: Fraction = "schedule_delay" in Seconds,
            "Delay of the most overdue planned time of a schedule, without its jitter; 0 if none is overdue";
        failing: Gauge = "schedules_failing",
            "Schedules whose last planned time could not fire; howdah schedule list shows the error";
    }
}

metrics! {
    /// Metrics of the archive: whether finished jobs are archived in time.
    #[derive(Default)]
    pub struct ArchiveMetrics {
        late: Gauge = "archive_late",
            "Days that have been over for two hours and have jobs that are not archived; their partitions are kept";
        jobs: Counter = "archived_jobs", "Finished jobs that this broker has archived";
        bytes: Counter = "archived" in Bytes, "Files of the archive that this broker has written";
        expired_days: Counter = "archive_expired_days",
            "Days of the archive that this broker has deleted, because they were older than archive_days";
        failures: Counter = "archive_failures",
            "Attempts of this broker to archive a day, or to delete an old one, that failed; howdah archive list shows why";
    }
}

metrics! {
    /// Metrics of the storage as last read from the database, equal for every broker.
    #[derive(Default)]
    pub struct StorageMetrics {
        replica_lag: Fraction = "read_replica_lag" in Seconds,
            "Upper bound of the replication lag of the read replica; 0 without a replica";
        replica_is_read: Gauge = "read_replica_used",
            "1 while the broker reads from the replica, which answers and is not too far behind; 0: it reads from the primary";
        live_rows: Family<ByTable, Gauge> = "live_rows",
            "Rows of the tables ready, leased, scheduled and waiting, as Postgres estimates";
        dead_rows: Family<ByTable, Gauge> = "dead_rows",
            "Rows of the same tables that vacuum has not removed yet, as Postgres estimates";
        snapshot_age: Fraction = "oldest_snapshot_age" in Seconds,
            "Age of the transaction that holds back vacuum the most, or how long this broker has seen a holder of unknown age; \
             0: none";
        snapshot_transactions: Gauge = "oldest_snapshot_transactions",
            "Age in transactions of the oldest snapshot that holds back vacuum";
        snapshot_bloat: Gauge = "snapshot_bloat", "1 while a held snapshot makes the tables grow";
        queue_usage: Fraction = "notification_queue_usage",
            "How full Postgres's notification queue is, for all databases of the server, 0 to 1";
        history_partitions: Gauge = "history_partitions",
            "Partitions of history, without the default one: one for each day kept, and some ahead";
        partition_days_ahead: Gauge = "partition_days_ahead",
            "Days after today for which history, payloads and the audit already have their partitions; at most 3";
        findings: Family<ByCheck, Gauge> = "findings",
            "Findings of howdah doctor, which runs once a minute in the broker; no series: nothing to change";
        clock_ahead: Fraction = "database_clock_ahead" in Seconds,
            "How far the database's clock is ahead of this broker's; negative: behind";
        clock_doubtful: Gauge = "database_clock_doubtful",
            "1 while this broker deletes no old data, because the database's clock has jumped, or is not within 5 min of the \
             broker's";
        table_bytes: Family<ByTable, Gauge> = "table" in Bytes,
            "Size of a table with its indexes and partitions, as of their last vacuum or analyze; other: all other tables";
    }
}

impl Metrics {
    /// Creates all metrics at zero, without exemplars.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates all metrics at zero, optionally with exemplars in the latencies.
    pub fn with_exemplars(are_wanted: bool) -> Self {
        let latency = || Latency::new(are_wanted);
        Self { pickup_latency: latency(), settle_latency: latency(), ..Self::default() }
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
        self.register(&mut r);
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

impl TraceMetrics {
    /// Counts dropped spans.
    pub fn drop_spans(&self, reason: &'static str, count: usize) {
        self.dropped.get_or_create(&ByReason { reason }).inc_by(count as u64);
    }
}
