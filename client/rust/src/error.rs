//! Errors, with the broker's code, field and reason. For failed connections they explain the cause and what to do, because the
//! errors of the underlying libraries do not.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::connection::TOO_LARGE;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a call, a producer or a worker.
///
/// [`code`](Error::code), [`field`](Error::field) and [`reason`](Error::reason) work for every
/// variant, so that most callers need not match on them.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No broker could be reached.
    #[error("cannot reach {endpoint}: {message}")]
    Connect {
        /// The address of the broker that was tried last.
        endpoint: String,
        /// The cause, such as the error of the operating system.
        message: String,
    },
    /// The broker returned an error, or the connection broke.
    #[error("{0}")]
    Status(Box<StatusError>),
    /// The client refused the value before sending.
    #[error("{field}: {message}")]
    Invalid {
        /// The invalid field.
        field: String,
        /// The refused value, and the values that are permitted.
        message: String,
    },
    /// No response arrived in time.
    #[error("{operation}: no answer within {after:?}")]
    Deadline {
        /// The operation that timed out, such as `enqueue_jobs`.
        operation: &'static str,
        /// The timeout that passed.
        after: Duration,
    },
    /// A call that changes something got no answer, because its deadline passed or its connection broke. It may have taken
    /// effect or not. Contains the error of the last attempt.
    #[error("{0}; it is unknown whether this took effect")]
    EffectUnknown(Box<Error>),
    /// The worker has lost the lease of a job: another worker may be running it.
    #[error("the lease of job {id} is lost")]
    LeaseLost {
        /// Id of the job.
        id: i64,
    },
    /// The producer or worker was stopped before the response arrived.
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
    /// Human-readable message: the field, its value, and what to do.
    pub message: String,
    /// Path of the invalid field, such as `jobs[3].task_type`; empty if the error is not about a field.
    pub field: String,
    /// Machine-readable reason, such as `INVALID_FIELD`; `REQUEST_TOO_LARGE` if a proxy refuses the size of a request; empty
    /// for other errors that are not from a broker.
    pub reason: String,
    /// Delay before a retry, which the broker sends if a backlog is full or a rate limit is exceeded.
    pub retry_after: Option<Duration>,
    /// Whether the connection broke. Then the code is a guess.
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
    /// The gRPC code of the error. The client chooses it for errors that are not from a broker.
    pub fn code(&self) -> Code {
        match self {
            Self::Connect { .. } => Code::Unavailable,
            Self::Status(status) => status.code,
            Self::Invalid { .. } | Self::Json(_) => Code::InvalidArgument,
            Self::Deadline { .. } => Code::DeadlineExceeded,
            Self::EffectUnknown(error) => error.code(),
            Self::LeaseLost { .. } => Code::FailedPrecondition,
            Self::Stopped(_) => Code::Cancelled,
        }
    }

    /// Path of the invalid field, such as `jobs[3].task_type`.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Status(status) => Some(status.field.as_str()).filter(|field| !field.is_empty()),
            Self::Invalid { field, .. } => Some(field),
            _ => None,
        }
    }

    /// The broker's machine-readable reason, such as `INVALID_FIELD`.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Status(status) => Some(status.reason.as_str()).filter(|reason| !reason.is_empty()),
            Self::EffectUnknown(error) => error.reason(),
            _ => None,
        }
    }

    /// Delay before a retry, which the broker sends if a backlog is full or a rate limit is exceeded (`RESOURCE_EXHAUSTED`).
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status(status) => status.retry_after,
            _ => None,
        }
    }

    /// Whether the same call may succeed later. Repeat an enqueue with the same request key, as this crate does automatically.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Deadline { .. } | Self::EffectUnknown(_) => true,
            Self::Status(status) => {
                status.broken
                    || status.retry_after.is_some()
                    || matches!(status.code, Code::Unavailable | Code::DeadlineExceeded | Code::Aborted)
            }
            _ => false,
        }
    }

    /// Whether an attempt of a call that changes something got no answer, so that it may have taken effect or not. To repeat an
    /// enqueue safely, use the same request key ([`Client::enqueue_all_with_key`](crate::Client::enqueue_all_with_key)). After
    /// other calls, check that the change was made. If a later attempt was answered with an error, the message has that error.
    pub fn is_effect_unknown(&self) -> bool {
        matches!(self, Self::EffectUnknown(_))
    }

    /// If `is_unknown`, marks the error of a call that may have taken effect.
    pub(crate) fn with_effect_unknown(self, is_unknown: bool) -> Self {
        if is_unknown { Self::EffectUnknown(Box::new(self)) } else { self }
    }

    /// Whether no answer arrived: the deadline passed or the connection broke.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Deadline { .. }) || matches!(self, Self::Status(status) if status.broken)
    }

    /// Whether a proxy refused the request because of its size. No part of the request has reached a broker.
    pub(crate) fn is_too_large(&self) -> bool {
        self.reason() == Some(TOO_LARGE)
    }

    /// Whether this crate retries the failed call automatically. False for a full backlog, which the producer should handle.
    pub(crate) fn is_retried(&self) -> bool {
        self.is_retryable() && self.retry_after().is_none()
    }

    /// Whether the broker refuses the caller or the request, so that a new stream would fail with the same error.
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

    /// The error of a stream that ended without a gRPC status.
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

    /// The error with which the broker answered one request of a stream. The stream itself continues.
    pub(crate) fn from_request(error: howdah_proto::v1::RequestError) -> Self {
        Self::Status(Box::new(StatusError {
            code: Code::from(error.code),
            message: error.message,
            field: error.field,
            reason: error.reason,
            retry_after: error.retry_after.and_then(|after| after.try_into().ok()),
            broken: false,
        }))
    }

    /// The error for a broker that cannot be reached.
    pub(crate) fn connect(endpoint: &impl fmt::Display, error: &dyn StdError) -> Self {
        let seen = chain(error);
        let message = explained(&seen).map_or(seen, |(explanation, _)| explanation.to_owned());
        Self::Connect { endpoint: endpoint.to_string().trim_end_matches('/').to_owned(), message }
    }

    /// Adds the broker's address to the message of a connection error.
    pub(crate) fn at(mut self, endpoint: &str) -> Self {
        if let Self::Status(status) = &mut self
            && (status.broken || is_explanation(&status.message) || status.reason == TOO_LARGE)
        {
            status.message = format!("{endpoint}: {}", status.message);
        }
        self
    }

    /// The error for a value that is refused before anything is sent, such as by [`Middleware::enqueue`](crate::Middleware).
    pub fn refused(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), message: message.into() }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let reason = details.error_info().map(|info| info.reason.clone());
        let field =
            details.bad_request().and_then(|bad| bad.field_violations.first()).map(|violation| violation.field.clone());
        // A gRPC status that was received has no source error. A status that the local transport created has one.
        let source = status.source();
        let from_transport = source.is_some();
        let seen = with_causes(status.message().to_owned(), source);
        let cause = explained(&seen).filter(|_| from_transport);
        // A known cause, such as an untrusted certificate, is permanent, so the error does not count as a broken connection.
        let broken = from_transport && cause.is_none();
        Self::Status(Box::new(StatusError {
            code: cause.map_or(status.code(), |(_, code)| code),
            message: cause.map_or(seen, |(explanation, _)| explanation.to_owned()),
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

/// Causes of failures that retries cannot remedy: a substring of the library's error, and the explanation.
const CAUSES: &[(&str, &str)] = &[
    // A broker with TLS closes a connection without TLS, and sends this text as the reason.
    ("this port needs TLS", "this port needs TLS: use https://"),
    ("InvalidContentType", "this port does not speak TLS: use http://"),
    ("NoApplicationProtocol", "this port does not speak gRPC: is it the broker's HTTP port?"),
    (
        "invalid peer certificate: UnknownIssuer",
        "the broker's certificate is not trusted: no authority that this client knows has signed it",
    ),
    // Texts with which a broker refuses a client certificate.
    ("client certificate needed", "the broker asks for a client certificate, and none was shown"),
    (
        "client certificate refused: no authority of the broker has signed it",
        "the broker refused the client certificate: none of its authorities has signed it",
    ),
    ("client certificate refused: it is revoked", "the broker refused the client certificate: it is revoked"),
    ("client certificate refused: it has expired", "the broker refused the client certificate: it has expired"),
    (
        "client certificate refused: the certificate has no name",
        "the broker refused the client certificate: it has no URI or DNS name as subject alternative name",
    ),
    ("client certificate refused", "the broker refused the client certificate; its log says why"),
    // A proxy that requires a client certificate sends this TLS alert.
    ("alert: CertificateRequired", "the broker asks for a client certificate, and none was shown"),
];

/// Returns the explanation and the code of a known error text: `UNAUTHENTICATED` for a client certificate, or else
/// `FAILED_PRECONDITION`. `None` for other errors: they keep their text, and a retry may succeed.
fn explained(error: &str) -> Option<(&'static str, Code)> {
    let (_, explanation) = CAUSES.iter().find(|(pattern, _)| error.contains(pattern))?;
    let is_about_client = explanation.contains("client certificate");
    Some((explanation, if is_about_client { Code::Unauthenticated } else { Code::FailedPrecondition }))
}

/// Whether the text is an explanation that [`explained`] returns.
fn is_explanation(text: &str) -> bool {
    CAUSES.iter().any(|(_, explanation)| *explanation == text)
}

/// Joins an error and its causes on one line, because the outer error of a transport does not name the cause.
pub(crate) fn chain(error: &dyn StdError) -> String {
    with_causes(error.to_string(), error.source())
}

/// Appends the messages of `next` and of its causes to `text`, except those that `text` already contains.
fn with_causes(mut text: String, mut next: Option<&(dyn StdError + 'static)>) -> String {
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        next = error.source();
    }
    text
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
    fn a_broken_connection_is_retryable_whatever_its_code() {
        let cause = std::io::Error::other("reset by peer");
        let error = Error::from(Status::from_error(Box::new(cause)));
        assert!(error.is_retryable());
        assert!(!error.is_refusal());
        assert_eq!(error.to_string(), "reset by peer");
        assert_eq!(error.at("http://broker:7432").to_string(), "http://broker:7432: reset by peer");
    }

    #[test]
    fn an_error_says_if_it_is_unknown_whether_the_change_took_effect() {
        let late = Error::Deadline { operation: "cancel", after: Duration::from_secs(1) };
        assert!(late.is_unanswered() && Error::broken("reset by peer").is_unanswered());
        assert!(!Error::from(Status::unavailable("no database")).is_unanswered(), "the broker has answered");
        assert!(!late.clone().with_effect_unknown(false).is_effect_unknown());
        let unknown = late.with_effect_unknown(true);
        assert!(unknown.is_effect_unknown() && unknown.is_retried());
        assert_eq!(unknown.code(), Code::DeadlineExceeded);
        assert_eq!(unknown.to_string(), "cancel: no answer within 1s; it is unknown whether this took effect");
    }

    #[test]
    fn a_tls_error_is_explained_with_the_address_and_not_retried() {
        let cause = std::io::Error::other("received fatal alert: CertificateRequired");
        let error = Error::from(Status::from_error(Box::new(cause))).at("https://broker:7432");
        assert!(!error.is_retryable() && error.is_refusal());
        assert_eq!(error.code(), Code::Unauthenticated);
        let expected = "https://broker:7432: the broker asks for a client certificate, and none was shown";
        assert_eq!(error.to_string(), expected);
        // The text is not explained, because it is not from the local transport: a broker may send any text.
        let error = Error::from(Status::unavailable("received fatal alert: CertificateRequired"));
        assert_eq!(error.to_string(), "received fatal alert: CertificateRequired");
        let error = Error::from(Status::not_found("job 17")).at("https://broker:7432");
        assert_eq!(error.to_string(), "job 17");
    }
}
