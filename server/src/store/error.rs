//! Errors of statements, sorted by what the caller may do.

use tokio_postgres::error::SqlState;

use crate::error::Error;

/// A statement or connection that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was sent: it is safe to try again.
    #[error("Postgres cannot be reached: {0}")]
    NotSent(String),
    /// It was sent, and there was no answer: it may have been committed.
    #[error("the connection to Postgres was lost, and the outcome is unknown: {0}")]
    Unknown(String),
    /// Postgres refused it for now (shutting down, read-only, disk full, timed out), and it was rolled back.
    #[error("Postgres refused the statement for now: {0}")]
    RolledBack(String),
    /// It lost against another transaction and was rolled back; try again at once.
    #[error("serialisation conflict: {0}")]
    Conflict(String),
    /// Another transaction holds a lock that it needs; it was rolled back.
    #[error("something that the statement needs is locked by another transaction: {0}")]
    Locked(String),
    /// There may be no more of these.
    #[error("{0}")]
    TooMany(String),
    /// A value that must be unique exists.
    #[error("already exists: {0}")]
    Taken(String),
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
    Refused(String),
}

impl StoreError {
    /// Whether a value of the statement is the cause, so that a part of a batch may pass.
    pub const fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Taken(_) | Self::Job { .. })
    }

    /// Whether the statement certainly had no effect, and may succeed later.
    pub const fn may_be_repeated(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::RolledBack(_) | Self::Conflict(_) | Self::Locked(_))
    }

    pub(super) fn of(error: &tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return Self::Unknown(crate::error::describe(error));
        };
        let text = format!("{} (SQLSTATE {})", db.message(), db.code().code());
        match db.code() {
            code if *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE => {
                Self::Conflict(text)
            }
            code if code.code() == TOO_MANY => Self::TooMany(match db.hint() {
                Some(hint) => format!("{}. {hint}", db.message()),
                None => db.message().to_owned(),
            }),
            code if code.code().starts_with(OUR_CLASS) => Self::Job {
                ordinal: db.detail().and_then(|ordinal| ordinal.parse().ok()).unwrap_or(1),
                field: db.hint().map(str::to_owned),
                problem: db.message().to_owned(),
            },
            code if *code == SqlState::LOCK_NOT_AVAILABLE => Self::Locked(text),
            code if *code == SqlState::UNIQUE_VIOLATION => Self::Taken(text),
            code if is_passing(code.code()) => Self::RolledBack(text),
            _ => Self::Refused(text),
        }
    }
}

/// SQLSTATEs of our own functions (`server/schema`).
const OUR_CLASS: &str = "HW";
/// The limit of something is reached.
const TOO_MANY: &str = "HW004";

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
        match error {
            StoreError::Refused(text) | StoreError::Taken(text) => {
                tracing::error!(error = %text, "Postgres refused a statement");
                Self::Internal(format!("the database refused the statement: {text}"))
            }
            StoreError::Job { ordinal, field: Some(field), problem } => {
                Self::invalid(format!("jobs[{}].{field}", ordinal.saturating_sub(1)), problem)
            }
            StoreError::Job { ordinal, field: None, problem } => {
                Self::KeyTaken(format!("jobs[{}].key: {problem}", ordinal.saturating_sub(1)))
            }
            StoreError::TooMany(text) => Self::TooMany(text),
            StoreError::Locked(_) => Self::Locked(error.to_string()),
            other => Self::Unavailable(other.to_string()),
        }
    }
}
