//! The error type of gRPC and HTTP calls, and its only conversion to a gRPC status.

use std::time::Duration;

use howdah_proto::ERROR_DOMAIN;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Delay before a caller should retry `GetJob` while the archive cannot be read. Clients do not retry this error
/// automatically.
const ARCHIVE_AGAIN: Duration = Duration::from_secs(10);

/// Error that a gRPC or HTTP call returns.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A field of the request is invalid.
    #[error("{field} {problem}")]
    Invalid {
        /// Path of the field, such as `jobs[3].task_type`.
        field: String,
        /// Problem with the field, with the value and the limit. The message is the field's path followed by this text,
        /// such as "must be …".
        problem: String,
    },
    /// The request or message is not allowed in the current state of the stream, job or other object.
    #[error("{0}")]
    Precondition(String),
    /// The store is closed to new jobs.
    #[error("{0}")]
    StoreClosed(String),
    /// The stores of the configuration cannot be served.
    #[error("{0}")]
    StoresRefused(String),
    /// The task type is moving to another store, or its move was interrupted.
    #[error("{0}")]
    Moving(String),
    /// The call needs history, which the task type does not keep.
    #[error("{0}")]
    NoHistory(String),
    /// The requested object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// An object with the same name and other contents exists.
    #[error("{0}")]
    AlreadyExists(String),
    /// The maximum number of objects of this kind exists already.
    #[error("{0}")]
    TooMany(String),
    /// The request key was used with other jobs.
    #[error("request_key {0:?} was used with other jobs before; use a new key for new jobs")]
    RequestKeyReused(String),
    /// The new job has `KEY_POLICY_REJECT`, and another job holds its key.
    #[error("{0}")]
    KeyTaken(String),
    /// The worker resumed the session on another stream.
    #[error(
        "the session was resumed on another stream, here or at another broker; this stream ends, and its leases continue on the other stream"
    )]
    SessionResumed,
    /// The worker sent no message for as long as its liveness.
    #[error(
        "nothing was heard from this worker for {0:?}, so its leases ended; answer Ping with Pong at once, or subscribe with a longer liveness"
    )]
    WorkerSilent(Duration),
    /// The caller sent no credential, or an invalid one.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller lacks permission.
    #[error("{0}")]
    Denied(String),
    /// The deadline of the call, or a time limit inside the call, has passed.
    #[error("{0}")]
    Deadline(String),
    /// Until the call's deadline, another transaction held a lock that the call needs. The call changed nothing.
    #[error("{0}")]
    Locked(String),
    /// A limit is reached at present. A retry may succeed.
    #[error("{message}")]
    Exhausted {
        /// Machine-readable reason.
        reason: &'static str,
        /// Text that names the limit and its value.
        message: String,
        /// Delay before the caller should retry.
        retry_after: Duration,
    },
    /// Postgres is unreachable, or the broker is stopping; callers may retry.
    #[error("{0}")]
    Unavailable(String),
    /// The transport reports that the caller's stream broke.
    #[error("the stream broke: {}", .0.message())]
    Broken(Status),
    /// The job may be in the archive, which cannot be read. An immediate retry would fail again.
    #[error("{0}")]
    NoArchive(String),
    /// A bug in the broker, or a failure that the caller cannot act on. The log has the details, the response does not.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// Returns an error about an invalid field. `problem` follows the field's path in the message, such as `must be …`.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }

    /// Puts `prefix` before the error's field: `task_type` in `jobs[3]` becomes `jobs[3].task_type`.
    #[must_use]
    pub fn within(self, prefix: &str) -> Self {
        match self {
            Self::Invalid { field, problem } => Self::Invalid { field: format!("{prefix}.{field}"), problem },
            other => other,
        }
    }

    /// Returns the gRPC code and the machine-readable reason.
    pub fn code(&self) -> (Code, &'static str) {
        match self {
            Self::Invalid { .. } => (Code::InvalidArgument, "INVALID_FIELD"),
            Self::Precondition(_) => (Code::FailedPrecondition, "WRONG_MESSAGE"),
            Self::StoreClosed(_) => (Code::FailedPrecondition, "STORE_CLOSED"),
            Self::StoresRefused(_) => (Code::FailedPrecondition, "STORES_REFUSED"),
            Self::Moving(_) => (Code::FailedPrecondition, "TYPE_MOVING"),
            Self::NoHistory(_) => (Code::FailedPrecondition, "NO_HISTORY"),
            Self::NotFound(_) => (Code::NotFound, "NOT_FOUND"),
            Self::AlreadyExists(_) => (Code::AlreadyExists, "ALREADY_EXISTS"),
            Self::TooMany(_) => (Code::ResourceExhausted, "TOO_MANY"),
            Self::RequestKeyReused(_) => (Code::AlreadyExists, "REQUEST_KEY_REUSED"),
            Self::KeyTaken(_) => (Code::AlreadyExists, "KEY_TAKEN"),
            Self::SessionResumed => (Code::Aborted, "SESSION_RESUMED"),
            Self::WorkerSilent(_) => (Code::Unavailable, "WORKER_SILENT"),
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

    /// Delay before the caller should retry, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Exhausted { retry_after, .. } => Some(*retry_after),
            Self::NoArchive(_) => Some(ARCHIVE_AGAIN),
            _ => None,
        }
    }

    /// Path of the invalid field, for errors about a field.
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

/// Maps a gRPC code to an HTTP status, as in `google/rpc/code.proto`.
pub fn http_status(code: Code) -> u16 {
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

/// Formats an error and its causes on one line.
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
