//! An error response with its details, as callers receive it.

use std::{fmt, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Code and error details of a refused call.
#[derive(Debug)]
pub struct Refusal {
    pub code: Code,
    /// The invalid field, such as `jobs[0].key`; empty if the error names no field.
    pub field: String,
    /// Machine-readable reason, such as `BACKLOG_FULL`.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// Retry delay, if the error has one.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// Asserts that the error is `INVALID_ARGUMENT` for this field, in both the details and the message.
    pub fn names(&self, field: &str) {
        assert_eq!((self.code, self.field.as_str()), (Code::InvalidArgument, field), "{self}");
        assert!(self.message.starts_with(field), "{self}");
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let field = details.bad_request().map(|bad| bad.field_violations[0].field.clone());
        Self {
            code: status.code(),
            field: field.unwrap_or_default(),
            reason: details.error_info().map(|info| info.reason.clone()).unwrap_or_default(),
            message: status.message().to_owned(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} [{}]: {}", self.code, self.reason, self.field, self.message)
    }
}
