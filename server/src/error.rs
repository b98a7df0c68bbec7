//! The error of calls, and its only conversion to a gRPC status.

use std::time::Duration;

use howdah_proto::ERROR_DOMAIN;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// When to ask again for a job while the archive cannot be read. Clients do not ask again by themselves then.
const ARCHIVE_AGAIN: Duration = Duration::from_secs(10);

/// An error of a call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A field is out of bounds.
    #[error("{field} {problem}")]
    Invalid {
        /// The field, as in `jobs[3].task_type`.
        field: String,
        /// The problem, with the value and the limit; continues a sentence that begins with the field.
        problem: String,
    },
    /// The message came at a wrong time.
    #[error("{0}")]
    Precondition(String),
    /// The store takes no new jobs.
    #[error("{0}")]
    StoreClosed(String),
    /// A task type moves to another store, or its move rests.
    #[error("{0}")]
    Moving(String),
    /// The task type of the job keeps no history that the call needs.
    #[error("{0}")]
    NoHistory(String),
    /// The thing does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A different thing with the same name exists.
    #[error("{0}")]
    AlreadyExists(String),
    /// The largest number of such things exists.
    #[error("{0}")]
    TooMany(String),
    /// The request key was used with other jobs.
    #[error("request_key {0:?} was used with other jobs before; use a new key for new jobs")]
    RequestKeyReused(String),
    /// A job with `KEY_POLICY_REJECT` found its key held.
    #[error("{0}")]
    KeyTaken(String),
    /// The worker opened another stream of this session.
    #[error(
        "the session was resumed on another stream, here or at another broker; this one ends, and what it held is there"
    )]
    SessionResumed,
    /// The caller did not say who it is, or not with a valid credential.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller may not do this.
    #[error("{0}")]
    Denied(String),
    /// Something took too long.
    #[error("{0}")]
    Deadline(String),
    /// Another transaction held what the call needs until the end of its time; nothing was changed.
    #[error("{0}")]
    Locked(String),
    /// A limit is reached for now.
    #[error("{message}")]
    Exhausted {
        /// A constant for programs.
        reason: &'static str,
        /// A text with the limit and the number.
        message: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Postgres cannot be reached, or the broker is stopping: try again.
    #[error("{0}")]
    Unavailable(String),
    /// The caller's stream broke, as the transport reports.
    #[error("the stream broke: {}", .0.message())]
    Broken(Status),
    /// The archive cannot be read, which may have the job. To ask again at once would not help.
    #[error("{0}")]
    NoArchive(String),
    /// A bug in the broker, or a failure that the caller cannot act on; the details are in the log, not in the answer.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// A field out of bounds; `problem` continues a sentence that begins with the field.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }

    /// The same error with its field inside `prefix`: `task_type` in `jobs[3]` is `jobs[3].task_type`.
    #[must_use]
    pub fn within(self, prefix: &str) -> Self {
        match self {
            Self::Invalid { field, problem } => Self::Invalid { field: format!("{prefix}.{field}"), problem },
            other => other,
        }
    }

    /// Its gRPC code, and a constant for programs.
    pub fn code(&self) -> (Code, &'static str) {
        match self {
            Self::Invalid { .. } => (Code::InvalidArgument, "INVALID_FIELD"),
            Self::Precondition(_) => (Code::FailedPrecondition, "WRONG_MESSAGE"),
            Self::StoreClosed(_) => (Code::FailedPrecondition, "STORE_CLOSED"),
            Self::Moving(_) => (Code::FailedPrecondition, "TYPE_MOVING"),
            Self::NoHistory(_) => (Code::FailedPrecondition, "NO_HISTORY"),
            Self::NotFound(_) => (Code::NotFound, "NOT_FOUND"),
            Self::AlreadyExists(_) => (Code::AlreadyExists, "ALREADY_EXISTS"),
            Self::TooMany(_) => (Code::ResourceExhausted, "TOO_MANY"),
            Self::RequestKeyReused(_) => (Code::AlreadyExists, "REQUEST_KEY_REUSED"),
            Self::KeyTaken(_) => (Code::AlreadyExists, "KEY_TAKEN"),
            Self::SessionResumed => (Code::Aborted, "SESSION_RESUMED"),
            Self::Unauthenticated(_) => (Code::Unauthenticated, "UNAUTHENTICATED"),
            Self::Denied(_) => (Code::PermissionDenied, "PERMISSION_DENIED"),
            Self::Deadline(_) => (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
            Self::Locked(_) => (Code::Aborted, "LOCKED"),
            Self::Exhausted { reason, .. } => (Code::ResourceExhausted, reason),
            Self::Unavailable(_) => (Code::Unavailable, "UNAVAILABLE"),
            Self::NoArchive(_) => (Code::Unavailable, "ARCHIVE_UNAVAILABLE"),
            Self::Broken(status) => (status.code(), "STREAM_BROKEN"),
            Self::Internal(_) => (Code::Internal, "INTERNAL"),
        }
    }

    /// When to try again, if the broker knows.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Exhausted { retry_after, .. } => Some(*retry_after),
            Self::NoArchive(_) => Some(ARCHIVE_AGAIN),
            _ => None,
        }
    }

    /// The invalid field, if there is one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Invalid { field, .. } => Some(field),
            Self::RequestKeyReused(_) => Some("request_key"),
            _ => None,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        if let Error::Broken(status) = error {
            return status;
        }
        let (code, reason) = error.code();
        let mut details = ErrorDetails::new();
        details.set_error_info(reason, ERROR_DOMAIN, std::collections::HashMap::new());
        if let Error::Invalid { field, problem } = &error {
            details.add_bad_request_violation(field.clone(), problem.clone());
        }
        if let Some(after) = error.retry_after() {
            details.set_retry_info(Some(after));
        }
        Self::with_error_details(code, error.to_string(), details)
    }
}

/// The HTTP status of a code, as in `google/rpc/code.proto`.
pub(crate) fn http_status(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
        _ => 500,
    }
}

/// The error with its causes, on one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
