//! Row changes recorded in a test database, and the SQL that records them.

use crate::tables::{Job, Number, Token};

/// A table of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// Jobs that can run now.
    Ready,
    /// Jobs that run.
    Leased,
    /// Jobs with a later start time.
    Scheduled,
    /// Jobs that wait for another job or a limit.
    Waiting,
    /// Jobs without attempts left, and jobs that failed for good.
    Dead,
    /// Finished jobs.
    History,
    /// Registered brokers. For a registration, the field `by` of the change names the broker process.
    Broker,
}

impl Table {
    /// Finds a table by its database name. Partitions of history count as history.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "ready" => Self::Ready,
            "leased" => Self::Leased,
            "scheduled" => Self::Scheduled,
            "waiting" => Self::Waiting,
            "dead" => Self::Dead,
            "broker" => Self::Broker,
            name if name.starts_with("history") => Self::History,
            _ => return None,
        })
    }
}

/// Whether a row was inserted or deleted. An update counts as a deletion and an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The row was inserted, or is the new row of an update.
    In,
    /// The row was deleted, or is the old row of an update.
    Out,
}

/// A change of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Sequence number of the change. The changes of one job are in the order in which they happened.
    pub seq: i64,
    pub transaction: i64,
    pub table: Table,
    /// Inserted or deleted.
    pub operation: Operation,
    /// Job id, or the broker's number for a broker row.
    pub job: Job,
    /// Token of the lease; `None` if the job is not leased.
    pub token: Option<Token>,
    /// Number of the broker that holds the lease.
    pub number: Option<Number>,
    /// Column `last_token`; in history, column `token`.
    pub last_token: Option<i64>,
    /// Attempts started.
    pub attempt: i16,
    /// Attempts allowed.
    pub max_attempts: i16,
    /// Whether the broker of the lease was live (its row had not expired). `None` if the lease has no broker, or the broker no
    /// longer has a row.
    pub is_live: Option<bool>,
    /// Whether the deadline of the lease had passed. `None` without a deadline.
    pub is_late: Option<bool>,
    /// `application_name` of the connection that made the change. Identifies the process if each process sets its own name.
    pub by: String,
}

/// SQL that creates the recording table and triggers in a database with Howdah's schema. The table lies outside that schema.
pub const LOG: &str = include_str!("log.sql");

/// Query that reads the recorded changes. Its columns are the fields of [`Change`], in order.
pub const READ: &str =
    "SELECT seq, transaction, table_name, is_insert, job, token, number, last_token, attempt, max_attempts,
                               is_live, is_late, by FROM trace.change ORDER BY seq";
