//! An error as callers see it.

use std::{fmt, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// A call that was refused: its code, and what the details of the error say.
#[derive(Debug)]
pub struct Refusal {
    pub code: Code,
    /// The field at fault, such as `jobs[0].key`; empty if none is named.
    pub field: String,
    /// A constant for programs, such as `BACKLOG_FULL`.
    pub reason: String,
    /// For a person.
    pub message: String,
    /// When to try again, if that is said.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// That it is for bad input, of this field, and that both the details and the text say so.
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
