//! Metrics of the storage, from the last read.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// Label of metrics per table.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByTable {
    /// `ready`, `leased`, `scheduled` or `waiting`. For sizes also `dead`, `history`, `payload`, `audit` or `other`.
    pub table: &'static str,
}

/// Database metrics, equal for every broker.
#[derive(Default)]
pub struct StorageMetrics {
    /// Difference between the database's clock and this broker's clock, in seconds; positive: the database is ahead.
    pub clock_ahead: Gauge<f64, AtomicU64>,
    /// 1 while the broker does not rely on the database's clock.
    pub clock_doubtful: Gauge,
    /// Live rows.
    pub live_rows: Family<ByTable, Gauge>,
    /// Dead rows that VACUUM has not removed.
    pub dead_rows: Family<ByTable, Gauge>,
    /// Age of the oldest snapshot, in seconds.
    pub snapshot_age: Gauge<f64, AtomicU64>,
    /// Age of the oldest snapshot, in transactions.
    pub snapshot_transactions: Gauge,
    /// 1 while a held snapshot makes the tables grow.
    pub snapshot_hurts: Gauge,
    /// Usage of the notification queue, 0 to 1.
    pub queue_usage: Gauge<f64, AtomicU64>,
    /// Replication lag of the read replica, in seconds.
    pub replica_lag: Gauge<f64, AtomicU64>,
    /// 1 while the read replica is used.
    pub replica_is_read: Gauge,
    /// Number of history partitions.
    pub history_partitions: Gauge,
    /// Number of days after today whose partitions exist.
    pub partition_days_ahead: Gauge,
    /// Sizes of tables, in bytes.
    pub table_bytes: Family<ByTable, Gauge>,
}

impl StorageMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, r: &mut Registry) {
        r.register_with_unit(
            "read_replica_lag",
            "Replication lag of the read replica, at most; 0 without a replica",
            Unit::Seconds,
            self.replica_lag.clone(),
        );
        r.register(
            "read_replica_used",
            "1 while the read replica answers and is not too far behind, so that it is read; 0: the primary is",
            self.replica_is_read.clone(),
        );
        r.register(
            "live_rows",
            "Rows of the tables ready, leased, scheduled and waiting, as Postgres estimates",
            self.live_rows.clone(),
        );
        r.register(
            "dead_rows",
            "Rows of the same tables that vacuum has not removed yet, as Postgres estimates",
            self.dead_rows.clone(),
        );
        r.register_with_unit(
            "oldest_snapshot_age",
            "Age of the transaction that holds back vacuum the most, or how long this broker has seen a holder without age; 0: none",
            Unit::Seconds,
            self.snapshot_age.clone(),
        );
        r.register(
            "oldest_snapshot_transactions",
            "Age in transactions of the oldest snapshot that holds back vacuum",
            self.snapshot_transactions.clone(),
        );
        r.register("snapshot_hurts", "1 while a held snapshot makes the tables grow", self.snapshot_hurts.clone());
        r.register(
            "notification_queue_usage",
            "How full Postgres's notification queue is, for all databases of the server, 0 to 1",
            self.queue_usage.clone(),
        );
        r.register(
            "history_partitions",
            "Partitions of history, without the default one: one for each day kept, and some ahead",
            self.history_partitions.clone(),
        );
        r.register(
            "partition_days_ahead",
            "Days after today for which history, payloads and the audit already have their partitions; at most 3",
            self.partition_days_ahead.clone(),
        );
        r.register_with_unit(
            "database_clock_ahead",
            "How far the database's clock is ahead of this broker's; negative: behind",
            Unit::Seconds,
            self.clock_ahead.clone(),
        );
        r.register(
            "database_clock_doubtful",
            "1 while this broker deletes nothing old, because the database's clock was set, or is not within 5 min of the broker's",
            self.clock_doubtful.clone(),
        );
        r.register_with_unit(
            "table",
            "Size of a table with its indexes and partitions, as of their last vacuum or analyze; other: all other tables",
            Unit::Bytes,
            self.table_bytes.clone(),
        );
    }
}
