//! Errors, with the code, the field and the reason from the broker.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::cause::{chain, explained, is_explanation, with_causes};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a call, a producer or a worker.
///
/// [`code`](Error::code), [`field`](Error::field) and [`reason`](Error::reason) work for every
/// variant, so that most callers need not match on them.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No endpoint could be reached.
    #[error("cannot reach {endpoint}: {message}")]
    Connect {
        /// The endpoint tried last.
        endpoint: String,
        /// The error of the network.
        message: String,
    },
    /// The broker answered with an error, or the connection broke.
    #[error("{0}")]
    Status(Box<StatusError>),
    /// The value was refused here, before anything was sent.
    #[error("{field}: {message}")]
    Invalid {
        /// The invalid field.
        field: String,
        /// Its value, and the values it may have.
        message: String,
    },
    /// No answer came in time. The request may have taken effect or not.
    #[error("{what}: no answer within {after:?}")]
    Deadline {
        /// The operation.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The worker has lost the lease of a job: another worker may be running it.
    #[error("the lease of job {id} is lost")]
    LeaseLost {
        /// The job.
        id: i64,
    },
    /// The producer or worker was stopped before the answer came.
    #[error("the {0} is stopped")]
    Stopped(&'static str),
    /// A payload could not be converted to or from JSON.
    #[error("JSON: {0}")]
    Json(#[source] Arc<serde_json::Error>),
}

/// An error of the broker, or a broken connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StatusError {
    /// The gRPC code.
    pub code: Code,
    /// A text for people: the field, its value, and what to do.
    pub message: String,
    /// The invalid field, such as `jobs[3].task_type`; empty if none is.
    pub field: String,
    /// A constant for programs, such as `INVALID_FIELD`; empty if the error does not come from the broker.
    pub reason: String,
    /// How long to wait before trying again, if the broker knows: a task type's backlog is full.
    pub retry_after: Option<Duration>,
    /// The connection broke. The code is a guess, and it is unknown whether the call took effect.
    pub broken: bool,
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            return f.write_str(self.code.description());
        }
        write!(f, "{}", self.message)?;
        if !self.field.is_empty() && !self.message.contains(&self.field) {
            write!(f, " ({})", self.field)?;
        }
        Ok(())
    }
}

impl Error {
    /// The gRPC code that fits best.
    pub fn code(&self) -> Code {
        match self {
            Self::Connect { .. } => Code::Unavailable,
            Self::Status(status) => status.code,
            Self::Invalid { .. } | Self::Json(_) => Code::InvalidArgument,
            Self::Deadline { .. } => Code::DeadlineExceeded,
            Self::LeaseLost { .. } => Code::FailedPrecondition,
            Self::Stopped(_) => Code::Cancelled,
        }
    }

    /// The invalid field, such as `jobs[3].task_type`.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Status(status) => Some(status.field.as_str()).filter(|field| !field.is_empty()),
            Self::Invalid { field, .. } => Some(field),
            _ => None,
        }
    }

    /// The broker's constant for this error, such as `INVALID_FIELD`.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Status(status) => Some(status.reason.as_str()).filter(|reason| !reason.is_empty()),
            _ => None,
        }
    }

    /// How long to wait before trying again, if the broker knows (`RESOURCE_EXHAUSTED`: a task type's backlog is full).
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status(status) => status.retry_after,
            _ => None,
        }
    }

    /// Whether the same call may succeed a little later. An enqueue should then be repeated with the same request key,
    /// as this crate does automatically.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Deadline { .. } => true,
            Self::Status(status) => {
                status.broken
                    || status.retry_after.is_some()
                    || matches!(status.code, Code::Unavailable | Code::DeadlineExceeded | Code::Aborted)
            }
            _ => false,
        }
    }

    /// Whether this crate tries again automatically. It does not for a full backlog, which the producer should know
    /// about.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_retryable() && self.retry_after().is_none()
    }

    /// Whether the broker refuses the caller or the call itself, so that a new stream would end the same way.
    pub(crate) fn is_refusal(&self) -> bool {
        let Self::Status(status) = self else {
            return matches!(self, Self::Invalid { .. });
        };
        !status.broken
            && matches!(
                status.code,
                Code::InvalidArgument
                    | Code::FailedPrecondition
                    | Code::OutOfRange
                    | Code::PermissionDenied
                    | Code::Unauthenticated
                    | Code::Unimplemented
            )
    }

    /// A stream that ended without a reason.
    pub(crate) fn broken(message: impl Into<String>) -> Self {
        Self::Status(Box::new(StatusError {
            code: Code::Unavailable,
            message: message.into(),
            field: String::new(),
            reason: String::new(),
            retry_after: None,
            broken: true,
        }))
    }

    /// The error of one request of a pipeline.
    pub(crate) fn of_request(error: howdah_proto::v1::RequestError) -> Self {
        Self::Status(Box::new(StatusError {
            code: Code::from(error.code),
            message: error.message,
            field: error.field,
            reason: error.reason,
            retry_after: error.retry_after.and_then(|after| after.try_into().ok()),
            broken: false,
        }))
    }

    /// No endpoint could be reached.
    pub(crate) fn connect(endpoint: &impl fmt::Display, error: &dyn StdError) -> Self {
        let seen = chain(error);
        let message = explained(&seen).map_or(seen, |(said, _)| said.to_owned());
        Self::Connect { endpoint: endpoint.to_string().trim_end_matches('/').to_owned(), message }
    }

    /// The same error with the address, if it is about the connection.
    pub(crate) fn at(mut self, endpoint: &str) -> Self {
        if let Self::Status(status) = &mut self
            && (status.broken || is_explanation(&status.message))
        {
            status.message = format!("{endpoint}: {}", status.message);
        }
        self
    }

    /// Refused before it was sent.
    pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), message: message.into() }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let reason = details.error_info().map(|info| info.reason.clone());
        let field =
            details.bad_request().and_then(|bad| bad.field_violations.first()).map(|violation| violation.field.clone());
        // A status from the wire has no source. One with a source was made here, by the transport.
        let source = status.source();
        let of_transport = source.is_some();
        let seen = with_causes(status.message().to_owned(), source);
        let cause = explained(&seen).filter(|_| of_transport);
        // To try again would not help.
        let broken = of_transport && cause.is_none();
        Self::Status(Box::new(StatusError {
            code: cause.map_or(status.code(), |(_, code)| code),
            message: cause.map_or(seen, |(said, _)| said.to_owned()),
            field: field.unwrap_or_default(),
            reason: reason.unwrap_or_default(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
            broken,
        }))
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn a_status_keeps_its_code_field_and_reason() {
        let mut details = ErrorDetails::with_error_info("INVALID_FIELD", "howdah.dev", []);
        details.add_bad_request_violation("jobs[3].task_type", "is empty");
        let error = Error::from(Status::with_error_details(Code::InvalidArgument, "is empty", details));
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(error.field(), Some("jobs[3].task_type"));
        assert_eq!(error.reason(), Some("INVALID_FIELD"));
        assert_eq!(error.to_string(), "is empty (jobs[3].task_type)");
        assert!(!error.is_retryable());
    }

    #[test]
    fn a_full_backlog_says_when_to_try_again_and_is_not_tried_again_behind_the_callers_back() {
        let mut details = ErrorDetails::with_error_info("BACKLOG_FULL", "howdah.dev", []);
        details.set_retry_info(Some(Duration::from_millis(250)));
        let error = Error::from(Status::with_error_details(Code::ResourceExhausted, "full", details));
        assert_eq!(error.retry_after(), Some(Duration::from_millis(250)));
        assert!(error.is_retryable() && !error.is_passing());
    }

    #[test]
    fn a_broken_connection_is_retryable_whatever_its_code() {
        let cause = std::io::Error::other("reset by peer");
        let error = Error::from(Status::from_error(Box::new(cause)));
        assert!(error.is_retryable());
        assert!(!error.is_refusal());
        assert_eq!(error.to_string(), "reset by peer");
        assert_eq!(error.at("http://broker:7432").to_string(), "http://broker:7432: reset by peer");
    }

    #[test]
    fn what_tls_refuses_is_said_in_words_with_the_address_and_not_tried_again() {
        let cause = std::io::Error::other("received fatal alert: CertificateRequired");
        let error = Error::from(Status::from_error(Box::new(cause))).at("https://broker:7432");
        assert!(!error.is_retryable() && error.is_refusal());
        assert_eq!(error.code(), Code::Unauthenticated);
        let said = "https://broker:7432: the broker asks for a client certificate, and none was shown";
        assert_eq!(error.to_string(), said);
        // Only the transport knows: a broker may write what it likes.
        let error = Error::from(Status::unavailable("received fatal alert: CertificateRequired"));
        assert_eq!(error.to_string(), "received fatal alert: CertificateRequired");
        let error = Error::from(Status::not_found("job 17")).at("https://broker:7432");
        assert_eq!(error.to_string(), "job 17");
    }
}
