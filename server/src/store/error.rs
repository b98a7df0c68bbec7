//! Errors of statements, sorted by what the caller may do.

use std::fmt;

use parking_lot::Mutex;
use tokio_postgres::error::SqlState;

use crate::{error::Error, logging::Throttle};

/// Why a statement failed. Texts of Postgres and of the system name hosts, users, databases and values: they are for the
/// log. Callers are told our own words, or the SQLSTATE.
#[derive(Clone, Debug)]
pub struct Cause {
    details: String,
    /// What callers may know; empty: nothing.
    told: String,
}

impl Cause {
    /// A text of somebody else.
    pub(super) fn foreign(details: String) -> Self {
        Self { details, told: String::new() }
    }

    /// What Postgres says.
    fn of_postgres(error: &tokio_postgres::error::DbError) -> Self {
        let told = format!("SQLSTATE {}", error.code().code());
        Self { details: format!("{} ({told})", error.message()), told }
    }

    /// The same, with more for the log.
    #[must_use]
    pub(super) fn with_details(mut self, more: &str) -> Self {
        self.details = format!("{}; {more}", self.details);
        self
    }

    /// The same, with the file in which it happened.
    #[must_use]
    pub(super) fn in_file(self, file: &str) -> Self {
        Self { details: format!("{file}: {}", self.details), ..self }
    }

    /// The same, said of something that has a name.
    #[must_use]
    pub(crate) fn of(self, what: &str) -> Self {
        Self { details: format!("{what}, {}", self.details), told: format!("{what}, {}", self.told) }
    }

    /// What callers are told after these words of ours.
    fn after(&self, words: &str) -> String {
        if self.told.is_empty() { words.to_owned() } else { format!("{words}: {}", self.told) }
    }
}

/// Words of our own.
impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self { details: text.clone(), told: text }
    }
}

impl From<&str> for Cause {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.details)
    }
}

/// A statement or connection that failed. Its text is for the log; `told` is for callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was sent: it is safe to try again.
    #[error("Postgres cannot be reached: {0}")]
    NotSent(Cause),
    /// It was sent, and there was no answer: it may have been committed.
    #[error("the connection to Postgres was lost, and the outcome is unknown: {0}")]
    Unknown(Cause),
    /// Postgres refused it for now (shutting down, read-only, disk full, timed out), and it was rolled back.
    #[error("Postgres refused the statement for now: {0}")]
    RolledBack(Cause),
    /// It lost against another transaction and was rolled back; try again at once.
    #[error("serialisation conflict: {0}")]
    Conflict(Cause),
    /// Another transaction holds a lock that it needs; it was rolled back.
    #[error("something that the statement needs is locked by another transaction: {0}")]
    Locked(Cause),
    /// The broker's own lease has run out. It has no part in what others decide, until it is registered again.
    #[error("the lease of this broker has run out")]
    Expired,
    /// There may be no more of these.
    #[error("{0}")]
    TooMany(String),
    /// The store is closed to new jobs.
    #[error("{0}")]
    Closed(String),
    /// A value that must be unique exists.
    #[error("already exists: {0}")]
    Taken(Cause),
    /// A job of the statement is refused for a reason that only the database can know.
    #[error("{problem}")]
    Job {
        /// The position of the job in the statement, from 1.
        ordinal: usize,
        /// The invalid field; `None`: another job holds its key.
        field: Option<String>,
        /// The problem.
        problem: String,
    },
    /// The statement is refused.
    #[error("Postgres refused the statement: {0}")]
    Refused(Cause),
}

impl StoreError {
    /// Whether a value of the statement is the cause, so that a part of a batch may pass.
    pub const fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Taken(_) | Self::Job { .. })
    }

    /// Whether the statement certainly had no effect, and may succeed later.
    pub const fn may_be_repeated(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::RolledBack(_) | Self::Conflict(_) | Self::Locked(_) | Self::Expired)
    }

    /// Whether the statement took longer than it may.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::RolledBack(cause) if cause.told.ends_with(SqlState::QUERY_CANCELED.code()))
    }

    /// What callers are told.
    pub fn told(&self) -> String {
        match self {
            Self::NotSent(cause) => cause.after("Postgres cannot be reached"),
            Self::Unknown(cause) => cause.after("the connection to Postgres was lost, and the outcome is unknown"),
            Self::RolledBack(cause) => cause.after("Postgres refused the statement for now"),
            Self::Conflict(cause) => cause.after("serialisation conflict"),
            Self::Locked(cause) => cause.after("something that the statement needs is locked by another transaction"),
            Self::Taken(cause) | Self::Refused(cause) => cause.after("the database refused the statement"),
            Self::Expired => {
                "the lease of this broker has run out, so it cannot say which jobs are kept; try another one".into()
            }
            Self::TooMany(text) | Self::Closed(text) => text.clone(),
            Self::Job { problem, .. } => problem.clone(),
        }
    }

    /// Writes what callers are not told into the log.
    fn log(&self) {
        /// Callers can cause these as often as they like.
        static REFUSALS: Mutex<Throttle> = Mutex::new(Throttle::new());
        match self {
            Self::Refused(_) | Self::Taken(_) => tracing::error!(error = %self, "Postgres refused a statement"),
            Self::RolledBack(_) => {
                if let Some(times) = REFUSALS.lock().ready() {
                    tracing::warn!(error = %self, times, "a call failed");
                }
            }
            // Whether Postgres is away is logged by the tasks that run all the time.
            Self::NotSent(_) | Self::Unknown(_) | Self::Conflict(_) | Self::Locked(_) | Self::Expired => {
                tracing::debug!(error = %self, "a call failed");
            }
            Self::TooMany(_) | Self::Closed(_) | Self::Job { .. } => {}
        }
    }

    pub(super) fn of(error: &tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return Self::Unknown(Cause::foreign(crate::error::describe(error)));
        };
        let cause = Cause::of_postgres(db);
        match db.code() {
            code if *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE => {
                Self::Conflict(cause)
            }
            code if code.code() == TOO_MANY => Self::TooMany(match db.hint() {
                Some(hint) => format!("{}. {hint}", db.message()),
                None => db.message().to_owned(),
            }),
            code if code.code() == CLOSED => Self::Closed(match db.hint() {
                Some(command) => format!("{}; `{command}` opens it", db.message()),
                None => db.message().to_owned(),
            }),
            code if code.code().starts_with(OUR_CLASS) => Self::Job {
                ordinal: db.detail().and_then(|ordinal| ordinal.parse().ok()).unwrap_or(1),
                field: db.hint().map(str::to_owned),
                problem: db.message().to_owned(),
            },
            code if *code == SqlState::LOCK_NOT_AVAILABLE => Self::Locked(cause),
            code if *code == SqlState::UNIQUE_VIOLATION => Self::Taken(cause),
            code if is_passing(code.code()) => Self::RolledBack(cause),
            _ => Self::Refused(cause),
        }
    }
}

/// SQLSTATEs of our own functions (`server/schema`).
const OUR_CLASS: &str = "HW";
/// The limit of something is reached.
const TOO_MANY: &str = "HW004";
/// The store takes no new jobs.
const CLOSED: &str = "HW005";

/// Whether the connection must be dropped after this error: it is ending, has become read-only (a former primary), or
/// its prepared statements do not fit any more.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        None => true,
        Some(db) => {
            let code = db.code().code();
            code.starts_with("57P") || ["25006", "26000", "0A000", "25P03", "25P02"].contains(&code)
        }
    }
}

/// SQLSTATE classes of temporary errors: resources (53), operator intervention and timeouts (57), system (58),
/// read-only (25006), out-of-date plans (26000, 0A000).
fn is_passing(code: &str) -> bool {
    ["53", "57", "58", "08"].iter().any(|class| code.starts_with(class))
        || ["25006", "25P03", "26000", "0A000"].contains(&code)
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        error.log();
        let told = error.told();
        match error {
            StoreError::Refused(_) | StoreError::Taken(_) => Self::Internal(told),
            StoreError::Job { ordinal, field: Some(field), problem } => {
                Self::invalid(format!("jobs[{}].{field}", ordinal.saturating_sub(1)), problem)
            }
            StoreError::Job { ordinal, field: None, problem } => {
                Self::KeyTaken(format!("jobs[{}].key: {problem}", ordinal.saturating_sub(1)))
            }
            StoreError::TooMany(_) => Self::TooMany(told),
            StoreError::Closed(_) => Self::StoreClosed(told),
            StoreError::Locked(_) => Self::Locked(told),
            StoreError::NotSent(_)
            | StoreError::Unknown(_)
            | StoreError::RolledBack(_)
            | StoreError::Conflict(_)
            | StoreError::Expired => Self::Unavailable(told),
        }
    }
}
