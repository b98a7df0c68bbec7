//! The health of the storage: dead rows, snapshots that hold back VACUUM, the notification queue, partitions.

use std::time::Duration;

use tokio_postgres::Row;

use super::{Statement, Store, StoreError};

/// The tables of unfinished jobs, in the order of the statement's arrays.
const HOT_TABLES: [&str; 4] = ["ready", "leased", "scheduled", "waiting"];

/// Figures for an operator whose tables grow.
#[derive(Clone, Debug, Default)]
pub struct StorageHealth {
    /// The tables ready, leased, scheduled and waiting.
    pub tables: Vec<TableHealth>,
    /// The oldest snapshot that holds back VACUUM of this database, if there is one.
    pub oldest_snapshot: Option<SnapshotHolder>,
    /// How full the notification queue is, 0 to 1.
    pub notification_queue_usage: f64,
    /// Partitions of history, without the default one.
    pub history_partitions: i64,
}

/// Rows of a table, as Postgres estimates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableHealth {
    /// Its name.
    pub name: &'static str,
    /// Live rows.
    pub live_rows: i64,
    /// Dead rows.
    pub dead_rows: i64,
    /// The number of dead rows at which autovacuum starts.
    pub autovacuum_threshold: i64,
}

/// A holder of a snapshot; fields that this role may not read are `None`.
#[derive(Clone, Debug)]
pub struct SnapshotHolder {
    /// Its kind.
    pub kind: HolderKind,
    /// The process, if there is one.
    pub pid: Option<i32>,
    /// The name of a prepared transaction or slot.
    pub name: Option<String>,
    /// The role.
    pub user: Option<String>,
    /// Its database.
    pub database: Option<String>,
    /// Its application name.
    pub application: Option<String>,
    /// Its state in `pg_stat_activity`.
    pub state: Option<String>,
    /// Rows that died in this transaction or later must be kept.
    pub xid: i64,
    /// The number of transactions since.
    pub xid_age: i64,
    /// The time since its transaction began; its snapshot may be younger.
    pub age: Option<Duration>,
}

/// The kind of a snapshot holder.
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
    /// Its name, for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::PreparedTransaction => "prepared transaction",
            Self::ReplicationSlot => "replication slot",
        }
    }

    fn of(number: i32) -> Self {
        match number {
            2 => Self::PreparedTransaction,
            3 => Self::ReplicationSlot,
            _ => Self::Session,
        }
    }
}

impl Store {
    /// Reads the health of the storage. Reads no jobs.
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
            oldest_snapshot: row.get::<_, Option<i32>>("kind").map(|kind| holder(HolderKind::of(kind), &row)),
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
        state: row.get("state"),
        xid: row.get("xid"),
        xid_age: row.get("xid_age"),
        age: row.get::<_, Option<i64>>("age_ms").map(|ms| Duration::from_millis(ms.max(0) as u64)),
    }
}
