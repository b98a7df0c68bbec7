//! One error, and the only conversion to a gRPC status.

use howdah_proto::ERROR_DOMAIN;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Everything that can go wrong for a caller.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A field is out of its bounds.
    #[error("{field} {problem}")]
    Invalid {
        /// Which, as in `jobs[3].task_type`.
        field: String,
        /// What is wrong, with the value and the limit; reads on after the field.
        problem: String,
    },
    /// The message came at the wrong time.
    #[error("{0}")]
    Precondition(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// There is such a thing already, and it is another.
    #[error("{0}")]
    AlreadyExists(String),
    /// There are as many as there may be.
    #[error("{0}")]
    TooMany(String),
    /// The request key was used with another body.
    #[error("request_key {0:?} was used with other jobs before; use a new key for new jobs")]
    RequestKeyReused(String),
    /// Something took too long.
    #[error("{0}")]
    Deadline(String),
    /// Postgres cannot be reached, or the broker is stopping: try again.
    #[error("{0}")]
    Unavailable(String),
    /// The caller's stream broke, as the transport tells.
    #[error("the stream broke: {}", .0.message())]
    Broken(Status),
    /// A mistake of ours; the details are in the log, not in the answer.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// A field out of its bounds; `problem` reads on after the field's name.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }

    /// The same error, its field inside `prefix`: `task_type` in `jobs[3]` is `jobs[3].task_type`.
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
            Self::NotFound(_) => (Code::NotFound, "NOT_FOUND"),
            Self::AlreadyExists(_) => (Code::AlreadyExists, "ALREADY_EXISTS"),
            Self::TooMany(_) => (Code::ResourceExhausted, "TOO_MANY"),
            Self::RequestKeyReused(_) => (Code::AlreadyExists, "REQUEST_KEY_REUSED"),
            Self::Deadline(_) => (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
            Self::Unavailable(_) => (Code::Unavailable, "UNAVAILABLE"),
            Self::Broken(status) => (status.code(), "STREAM_BROKEN"),
            Self::Internal(_) => (Code::Internal, "INTERNAL"),
        }
    }

    /// The field at fault, if one is.
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
        Self::with_error_details(code, error.to_string(), details)
    }
}
