//! Figures on the health of storage: dead rows, snapshots that hold back VACUUM, the notification queue, partitions.

use std::time::Duration;

use tokio_postgres::Row;

use super::{Statement, Store, StoreError};

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

impl Store {
    /// Ends LISTEN sessions of brokers whose lease has expired. Returns pairs of broker id and process id.
    pub async fn end_listeners(&self) -> Result<Vec<(i32, i32)>, StoreError> {
        let rows = self.general().await?.query(Statement::EndListeners, &[]).await?;
        Ok(rows.iter().map(|row| (row.get("id"), row.get("pid"))).collect())
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
            oldest_snapshot: row.get::<_, Option<i32>>("kind").map(|kind| holder(HolderKind::from_number(kind), &row)),
            notification_queue_usage: row.get("queue_usage"),
            history_partitions: row.get("partitions"),
        })
    }
}

fn holder(kind: HolderKind, row: &Row) -> SnapshotHolder {
    SnapshotHolder {
        kind,
        pid: row.get("pid"),
        name: row.get("name"),
        user: row.get("user_name"),
        database: row.get("database"),
        application: row.get("application"),
        broker: row.get("broker"),
        state: row.get("state"),
        xid: row.get("xid"),
        xid_age: row.get("xid_age"),
        age: row.get::<_, Option<i64>>("age_ms").map(|ms| Duration::from_millis(ms.max(0) as u64)),
    }
}
