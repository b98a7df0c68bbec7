//! Figures on the health of storage: dead rows, snapshots that hold back VACUUM, the notification queue, partitions, sizes
//! of tables; and figures that show whether maintenance tasks keep up.

use std::time::Duration;

use super::{
    Statement, Store, StoreError,
    rows::{FromRow as _, from_row, millis},
};

/// Tables of unfinished jobs, in the order of the arrays that the statement returns.
const HOT_TABLES: [&str; 4] = ["ready", "leased", "scheduled", "waiting"];

/// Storage figures for metrics and warnings.
#[derive(Clone, Debug, Default)]
pub struct StorageHealth {
    /// Figures of the tables ready, leased, scheduled and waiting.
    pub tables: Vec<TableHealth>,
    /// The oldest snapshot that holds back VACUUM in this database.
    pub oldest_snapshot: Option<SnapshotHolder>,
    /// Usage of the notification queue, from 0 to 1.
    pub notification_queue_usage: f64,
    /// Number of history partitions, not counting the default partition.
    pub history_partitions: i64,
}

/// Row counts of a table, as estimated by Postgres, and the autovacuum threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableHealth {
    pub name: &'static str,
    /// Estimated number of live rows.
    pub live_rows: i64,
    /// Estimated number of dead rows.
    pub dead_rows: i64,
    /// Number of dead rows at which autovacuum starts.
    pub autovacuum_threshold: i64,
}

/// The holder of a snapshot. Fields that this role may not read are `None`.
#[derive(Clone, Debug)]
pub struct SnapshotHolder {
    pub kind: HolderKind,
    /// Process id, if the holder is a session.
    pub pid: Option<i32>,
    /// Name of a prepared transaction or replication slot.
    pub name: Option<String>,
    /// Name of the role.
    pub user: Option<String>,
    pub database: Option<String>,
    /// Application name of the session.
    pub application: Option<String>,
    /// Name and id of the broker whose LISTEN session holds the snapshot. `None` if the session is of another kind.
    pub broker: Option<String>,
    /// Session state in `pg_stat_activity`.
    pub state: Option<String>,
    /// Oldest transaction id that the holder's snapshot may need. VACUUM cannot remove rows that this or a later
    /// transaction deleted.
    pub xid: i64,
    /// Number of transactions that began since `xid`.
    pub xid_age: i64,
    /// Time since the transaction that holds the snapshot began. The snapshot may be younger.
    pub age: Option<Duration>,
}

from_row! {
    SnapshotHolder(row) {
        kind: HolderKind::from_number(row.get("kind")), pid, name, user: row.get("user_name"), database, application,
        broker, state, xid, xid_age, age: millis(row, "age_ms"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderKind {
    /// A session, or a standby that sends feedback.
    Session,
    /// A prepared transaction that has not ended.
    PreparedTransaction,
    /// A replication slot.
    ReplicationSlot,
}

impl HolderKind {
    /// Returns the name for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::PreparedTransaction => "prepared transaction",
            Self::ReplicationSlot => "replication slot",
        }
    }

    fn from_number(number: i32) -> Self {
        match number {
            2 => Self::PreparedTransaction,
            3 => Self::ReplicationSlot,
            _ => Self::Session,
        }
    }
}

/// Maintenance figures for metrics.
#[derive(Clone, Debug, Default)]
pub struct MaintenanceState {
    /// Time by which the most overdue schedule is late. Zero if no schedule is late.
    pub schedule_delay: Duration,
    /// Number of active schedules whose last attempt to fire failed.
    pub schedules_failing: i64,
    /// Number of days among the next `days` days for which all day partitions exist.
    pub days_ahead: i64,
    /// Name and size of each table. Sizes are in bytes, as of the last VACUUM or ANALYZE.
    pub tables: Vec<(String, i64)>,
}

from_row! {
    MaintenanceState(row) {
        schedule_delay: millis(row, "delay_ms").unwrap_or_default(),
        schedules_failing: row.get("failing"),
        days_ahead,
        tables: {
            let names = row.get::<_, Option<Vec<String>>>("tables").unwrap_or_default();
            names.into_iter().zip(row.get::<_, Option<Vec<i64>>>("bytes").unwrap_or_default()).collect()
        },
    }
}

impl Store {
    /// Ends LISTEN sessions of brokers whose lease has expired. Returns pairs of broker id and process id.
    pub async fn end_listeners(&self) -> Result<Vec<(i32, i32)>, StoreError> {
        self.general().await?.list(Statement::EndListeners, &[]).await
    }

    /// Reads the storage health from catalogs and statistics of Postgres. Reads no job rows.
    pub async fn storage_health(&self) -> Result<StorageHealth, StoreError> {
        let row = self.general().await?.query_one(Statement::StorageHealth, &[]).await?;
        let rows = |column| row.get::<_, Vec<i64>>(column).into_iter();
        let figures = rows("live_rows").zip(rows("dead_rows")).zip(rows("autovacuum_threshold"));
        let table = |(name, ((live_rows, dead_rows), autovacuum_threshold))| TableHealth {
            name,
            live_rows,
            dead_rows,
            autovacuum_threshold,
        };
        Ok(StorageHealth {
            tables: HOT_TABLES.into_iter().zip(figures).map(table).collect(),
            oldest_snapshot: row.get::<_, Option<i32>>("kind").map(|_| SnapshotHolder::from_row(&row)),
            notification_queue_usage: row.get("queue_usage"),
            history_partitions: row.get("partitions"),
        })
    }

    /// Reads the maintenance figures. Looks for partitions on the next `days` days.
    pub async fn maintenance_state(&self, days: i32) -> Result<MaintenanceState, StoreError> {
        self.general().await?.one(Statement::MaintenanceState, &[&days]).await
    }

    /// Counts days that ended at least `minutes` ago and are not archived. 0 if archiving is off.
    pub async fn archive_overdue(&self, minutes: i32) -> Result<i64, StoreError> {
        self.general().await?.one(Statement::ArchiveOverdue, &[&minutes]).await
    }

    /// Turns archiving on: from now on, no broker drops a day that is not archived.
    pub async fn set_archive_target(&self, url: &str, who: &str) -> Result<(), StoreError> {
        self.general().await?.run(Statement::SetArchiveTarget, &[&url, &who]).await
    }
}
