//! Errors of statements, classified by how the caller may react.

use std::{fmt, time::SystemTime};

use howdah_core::{error::Error, logging::ThrottleByKind};
use tokio_postgres::error::{DbError, SqlState};

use super::sqlstate;

/// Cause of a failed connection to a database that allows no writes.
const READ_ONLY: &str = "the database allows no writes: it is a standby, or default_transaction_read_only is on";

/// Reason why a statement failed. Error texts of Postgres and of the operating system name hosts, users, databases and
/// values, so only the log contains them. Callers get a text of the broker, or the SQLSTATE.
#[derive(Clone, Debug, Default)]
pub struct Cause {
    details: Box<str>,
    /// Error text for callers. May be empty.
    public_text: String,
    /// SQLSTATE, if Postgres refused the statement.
    code: Option<SqlState>,
    /// Time since which Postgres has not answered: the first failed connection attempt. `None` if Postgres has answered
    /// since.
    since: Option<SystemTime>,
    /// True if retries fail until the configuration or the server is changed, such as after a wrong password.
    permanent: bool,
}

impl Cause {
    /// Creates a cause from an error text of another program, such as Postgres. Only the log may contain this text.
    pub(super) fn private(details: String) -> Self {
        Self { details: details.into(), ..Self::default() }
    }

    /// Creates a cause from a wrong configuration or a TLS error. Retries fail until an operator corrects it.
    pub(super) fn permanent(details: String) -> Self {
        Self { permanent: true, ..Self::private(details) }
    }

    /// Creates a cause from the error of a connection attempt.
    pub(super) fn of_connecting(error: &tokio_postgres::Error) -> Self {
        let details = howdah_core::error::describe(error);
        match error.as_db_error() {
            Some(db) => Self { permanent: sqlstate::is_permanent(db.code()), ..Self::of_postgres(db) },
            None if sqlstate::is_wrong_tls(error) => {
                let public_text =
                    "its certificate is not trusted, or its TLS settings differ; the broker's log has details";
                Self { permanent: true, public_text: public_text.into(), ..Self::private(details) }
            }
            // The client's text for a server that `target_session_attrs` excludes.
            None if details.contains("does not allow writes") => {
                Self { public_text: READ_ONLY.into(), ..Self::private(READ_ONLY.into()) }
            }
            None => Self::private(details),
        }
    }

    fn of_postgres(error: &DbError) -> Self {
        let public_text = format!("SQLSTATE {}", error.code().code());
        let details = format!("{} ({public_text})", error.message());
        Self { details: details.into(), public_text, code: Some(error.code().clone()), since: None, permanent: false }
    }

    /// Adds the time since which Postgres has not answered.
    #[must_use]
    pub(super) fn since(self, since: SystemTime) -> Self {
        Self { since: Some(since), ..self }
    }

    /// Whether a retry cannot succeed before the configuration or the server is changed.
    pub(super) const fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// SQLSTATE, if Postgres refused the statement.
    pub fn code(&self) -> Option<&str> {
        self.code.as_ref().map(SqlState::code)
    }

    /// Prefixes the error text for the log with the name of the file that caused the error.
    #[must_use]
    pub(super) fn in_file(self, file: &str) -> Self {
        Self { details: format!("{file}: {}", self.details).into(), ..self }
    }

    /// Prefixes the error texts for the log and for callers with `what`, such as the name of the locked object.
    #[must_use]
    pub(crate) fn with_subject(self, what: &str) -> Self {
        Self {
            details: format!("{what}, {}", self.details).into(),
            public_text: format!("{what}, {}", self.public_text),
            ..self
        }
    }

    /// Returns the error text for callers, prefixed with `words`.
    fn public_text_after(&self, words: &str) -> String {
        let words = self.dated(words);
        if self.public_text.is_empty() { words } else { format!("{words}: {}", self.public_text) }
    }

    fn dated(&self, words: &str) -> String {
        match self.since {
            Some(since) => format!("{words} since {}", humantime::format_rfc3339_seconds(since)),
            None => words.to_owned(),
        }
    }
}

/// Creates a cause from a text of the broker, which callers may see.
impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self { details: text.as_str().into(), public_text: text, ..Self::default() }
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

/// Error of a statement or a connection. `Display` is for the log, `public_text` for callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The statement was not sent to Postgres, so a retry is safe.
    #[error("{lead}: {0}", lead = .0.dated("Postgres cannot be reached"))]
    NotSent(Cause),
    /// The statement was sent and not answered. It may have been committed.
    #[error("the connection to Postgres was lost, and the outcome is unknown: {0}")]
    Unknown(Cause),
    /// The statement was rolled back for a reason outside the request: Postgres shuts down or is read-only, its disk is
    /// full, a table is damaged, rights are missing, or the statement timed out.
    #[error("Postgres refused the statement for now: {0}")]
    RolledBack(Cause),
    /// Rolled back because of a conflict with another transaction. The caller may retry at once.
    #[error("rolled back after a conflict with another transaction: {0}")]
    Conflict(Cause),
    /// Rolled back because another transaction holds a required lock.
    #[error("a row or table that the statement needs is locked by another transaction: {0}")]
    Locked(Cause),
    /// The lease of this broker has expired. The broker must register again before it claims, adopts or rescues leases.
    #[error("the lease of this broker has expired")]
    Expired,
    /// A limit on the number of records is reached.
    #[error("{0}")]
    TooMany(String),
    /// The store is closed to new jobs.
    #[error("{0}")]
    Closed(String),
    /// A value that must be unique already exists.
    #[error("already exists: {0}")]
    Taken(Cause),
    /// One job of the statement is refused for a reason that only the database can check.
    #[error("{problem}")]
    Job {
        /// Position of the job in the statement, from 1.
        ordinal: usize,
        /// Invalid field. `None` if another job holds the job's key.
        field: Option<String>,
        /// Description of the problem.
        problem: String,
    },
    /// A value in the statement was refused, or the broker cannot read the answer.
    #[error("Postgres refused the statement: {0}")]
    Refused(Cause),
}

impl StoreError {
    /// Whether a value in the statement caused the error, so that other jobs of the batch may succeed alone.
    pub const fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Taken(_) | Self::Job { .. })
    }

    /// Whether the other jobs of the batch may succeed in separate statements. False if the SQLSTATE shows that any
    /// statement would fail, such as during a shutdown.
    pub fn may_spare_other_jobs(&self) -> bool {
        match self {
            Self::RolledBack(cause) => {
                cause.code.as_ref().is_some_and(|code| !sqlstate::concerns_every_statement(code))
            }
            other => other.is_refused(),
        }
    }

    /// Whether retries fail until the configuration or the server is changed: a wrong password, a missing database, an
    /// untrusted certificate.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::NotSent(cause) if cause.permanent)
    }

    /// Whether the database answers, but allows no writes.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::NotSent(cause) if cause.public_text == READ_ONLY)
    }

    /// Whether the server, the database or the role has no connection left.
    pub(super) fn is_out_of_connections(&self) -> bool {
        matches!(self, Self::NotSent(cause) if cause.code == Some(SqlState::TOO_MANY_CONNECTIONS))
    }

    /// Whether tables or functions of the schema are missing.
    pub(crate) fn is_schema_missing(&self) -> bool {
        matches!(self.code(), Some(code) if (code.starts_with("42") || code.starts_with("3F")) && code != "42501")
    }

    /// SQLSTATE, if Postgres refused the statement.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::NotSent(cause)
            | Self::Unknown(cause)
            | Self::RolledBack(cause)
            | Self::Conflict(cause)
            | Self::Locked(cause)
            | Self::Taken(cause)
            | Self::Refused(cause) => cause.code(),
            Self::Expired | Self::TooMany(_) | Self::Closed(_) | Self::Job { .. } => None,
        }
    }

    /// Whether the statement certainly had no effect and may succeed later.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::RolledBack(_) | Self::Conflict(_) | Self::Locked(_) | Self::Expired)
    }

    /// Whether the server ended the session, so that the next statement opens a new connection.
    pub(crate) fn ends_session(&self) -> bool {
        self.code().is_some_and(sqlstate::ends_session)
    }

    /// Whether the statement exceeded its timeout.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::RolledBack(cause) if cause.code == Some(SqlState::QUERY_CANCELED))
    }

    /// Returns the error text for callers.
    pub fn public_text(&self) -> String {
        match self {
            Self::NotSent(cause) => cause.public_text_after("Postgres cannot be reached"),
            Self::Unknown(cause) => {
                cause.public_text_after("the connection to Postgres was lost, and the outcome is unknown")
            }
            Self::RolledBack(cause) => cause.public_text_after("Postgres refused the statement for now"),
            Self::Conflict(cause) => cause.public_text_after("rolled back after a conflict with another transaction"),
            Self::Locked(cause) => {
                cause.public_text_after("a row or table that the statement needs is locked by another transaction")
            }
            Self::Taken(cause) | Self::Refused(cause) => cause.public_text_after("the database refused the statement"),
            Self::Expired => {
                "the lease of this broker has expired, so it cannot tell which jobs are kept; call another broker"
                    .into()
            }
            Self::TooMany(text) | Self::Closed(text) => text.clone(),
            Self::Job { problem, .. } => problem.clone(),
        }
    }

    /// Returns what an operator should do about the error.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        sqlstate::advice(self)
    }

    /// Logs the error details that callers do not get.
    fn log(&self) {
        /// Limits the rate of these log lines, because callers can cause the errors at any rate.
        static FAILED_CALLS: ThrottleByKind = ThrottleByKind::new();
        match self {
            Self::Refused(_) | Self::Taken(_) | Self::RolledBack(_) => {
                if let Some(times) = FAILED_CALLS.count(self.code().unwrap_or_default()) {
                    tracing::warn!(error = %self, times, "Postgres refuses statements of calls. {}", sqlstate::advice(self));
                }
            }
            // Debug level is enough, because maintenance tasks run all the time and log an outage of Postgres as a
            // warning.
            Self::NotSent(_) | Self::Unknown(_) | Self::Conflict(_) | Self::Locked(_) | Self::Expired => {
                tracing::debug!(error = %self, "a call failed");
            }
            Self::TooMany(_) | Self::Closed(_) | Self::Job { .. } => {}
        }
    }

    pub(super) fn from_postgres(error: &tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return Self::Unknown(Cause::private(howdah_core::error::describe(error)));
        };
        let cause = Cause::of_postgres(db);
        match db.code() {
            code if *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE => {
                Self::Conflict(cause)
            }
            // Among check violations, only the error of a partition bound names no constraint. The row was routed to
            // the default partition while another transaction created its day partition, so a retry succeeds.
            code if *code == SqlState::CHECK_VIOLATION && db.constraint().is_none() => Self::Conflict(cause),
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
            code if sqlstate::is_value_error(code) => Self::Refused(cause),
            _ => Self::RolledBack(cause),
        }
    }
}

/// Class of SQLSTATEs that Howdah's own functions raise (`server/engine/schema`).
const OUR_CLASS: &str = "HW";
/// A limit on the number of records is reached.
const TOO_MANY: &str = "HW004";
/// The store is closed to new jobs.
const CLOSED: &str = "HW005";

/// Whether the connection must be dropped after this error: the session ends, the server has become read-only (a former
/// primary), or prepared statements are invalid.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        None => true,
        Some(db) => {
            let code = db.code().code();
            sqlstate::ends_session(code) || ["25006", "26000", "0A000", "25P02", "25P03", "25P04"].contains(&code)
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        error.log();
        let public_text = error.public_text();
        match error {
            StoreError::Refused(_) | StoreError::Taken(_) => Self::Internal(public_text),
            StoreError::Job { ordinal, field: Some(field), problem } => {
                Self::invalid(format!("jobs[{}].{field}", ordinal.saturating_sub(1)), problem)
            }
            StoreError::Job { ordinal, field: None, problem } => {
                Self::KeyTaken(format!("jobs[{}].key: {problem}", ordinal.saturating_sub(1)))
            }
            StoreError::TooMany(_) => Self::TooMany(public_text),
            StoreError::Closed(_) => Self::StoreClosed(public_text),
            StoreError::Locked(_) => Self::Locked(public_text),
            StoreError::NotSent(_)
            | StoreError::Unknown(_)
            | StoreError::RolledBack(_)
            | StoreError::Conflict(_)
            | StoreError::Expired => Self::Unavailable(public_text),
        }
    }
}
