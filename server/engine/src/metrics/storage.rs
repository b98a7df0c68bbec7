//! Metrics of the storage, as last read from the database.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

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

/// Database metrics, equal for every broker.
#[derive(Default)]
pub struct StorageMetrics {
    /// Difference between the database's clock and this broker's clock, in seconds; positive: the database is ahead.
    pub clock_ahead: Gauge<f64, AtomicU64>,
    /// 1 while the broker does not rely on the database's clock.
    pub clock_doubtful: Gauge,
    /// Live rows.
    pub live_rows: Family<ByTable, Gauge>,
    /// Number of dead rows that VACUUM has not removed yet, by table.
    pub dead_rows: Family<ByTable, Gauge>,
    /// Age in seconds of the oldest snapshot that holds back VACUUM.
    pub snapshot_age: Gauge<f64, AtomicU64>,
    /// Age in transactions of the oldest snapshot that holds back VACUUM.
    pub snapshot_transactions: Gauge,
    /// 1 while a held snapshot makes the tables grow.
    pub snapshot_hurts: Gauge,
    /// Used fraction of Postgres's notification queue, from 0 to 1.
    pub queue_usage: Gauge<f64, AtomicU64>,
    /// Replication lag of the read replica, in seconds.
    pub replica_lag: Gauge<f64, AtomicU64>,
    /// 1 while queries go to the read replica, 0 while they go to the primary.
    pub replica_is_read: Gauge,
    /// Findings of the checks of `howdah doctor`.
    pub findings: Family<ByCheck, Gauge>,
    /// Number of history partitions.
    pub history_partitions: Gauge,
    /// Number of days after today whose partitions exist.
    pub partition_days_ahead: Gauge,
    /// Sizes of tables, in bytes.
    pub table_bytes: Family<ByTable, Gauge>,
}

impl StorageMetrics {
    pub fn register(&self, r: &mut Registry) {
        r.register_with_unit(
            "read_replica_lag",
            "Upper bound of the replication lag of the read replica; 0 without a replica",
            Unit::Seconds,
            self.replica_lag.clone(),
        );
        r.register(
            "read_replica_used",
            "1 while the broker reads from the replica, which answers and is not too far behind; 0: it reads from the primary",
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
            "Age of the transaction that holds back vacuum the most, or how long this broker has seen a holder of unknown age; \
             0: none",
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
        r.register(
            "findings",
            "Findings of howdah doctor, which runs once a minute in the broker; no series: nothing to change",
            self.findings.clone(),
        );
        r.register_with_unit(
            "database_clock_ahead",
            "How far the database's clock is ahead of this broker's; negative: behind",
            Unit::Seconds,
            self.clock_ahead.clone(),
        );
        r.register(
            "database_clock_doubtful",
            "1 while this broker deletes no old data, because the database's clock has jumped, or is not within 5 min of the \
             broker's",
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
