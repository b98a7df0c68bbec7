//! A change of a row as it is recorded, and the SQL that records it in a database of tests.

use crate::tables::{Job, Number, Token};

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// Can run now.
    Ready,
    /// Runs.
    Leased,
    /// Not before some time.
    Scheduled,
    /// Behind another job, or a limit.
    Waiting,
    /// No attempts left, or failed for good.
    Dead,
    /// Finished.
    History,
    /// Brokers that registered; `by` is the process.
    Broker,
}

impl Table {
    /// By its name in the database; partitions of history are history.
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

/// What happened to the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// It was inserted.
    In,
    /// It was deleted, or is the old row of an update.
    Out,
}

/// A change of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its number: changes of one job are in their order.
    pub seq: i64,
    /// The transaction.
    pub transaction: i64,
    /// The table.
    pub table: Table,
    /// Inserted or deleted.
    pub operation: Operation,
    /// The job; the broker's number if it is about a broker.
    pub job: Job,
    /// The token of a lease.
    pub token: Option<Token>,
    /// The broker of a lease.
    pub number: Option<Number>,
    /// `last_token`; of history, `token`.
    pub last_token: Option<i64>,
    /// Attempts.
    pub attempt: i16,
    /// The most attempts.
    pub max_attempts: i16,
    /// Whether the broker of the lease had not expired. `None`: it has no broker, or that has no row any more.
    pub is_live: Option<bool>,
    /// Whether the deadline of the lease had passed.
    pub is_late: Option<bool>,
    /// The connection's `application_name`: which process did it, if the processes have different ones.
    pub by: String,
}

/// Creates the record in a database that has Howdah's schema: a table outside of it, and triggers.
pub const LOG: &str = include_str!("log.sql");

/// Reads it: the columns are the fields of [`Change`], in their order.
pub const READ: &str =
    "SELECT seq, transaction, table_name, is_insert, job, token, number, last_token, attempt, max_attempts,
                               is_live, is_late, by FROM trace.change ORDER BY seq";
