//! What an error says about the lines of a request.

use howdah_client::Error;
use tonic::Code;

/// What to do with a request that was not answered with ids.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It may have been stored.
    Unknown,
    /// It was not stored. Send this many of its lines first.
    Lines(usize),
    /// It was not stored because of its first line.
    First,
    /// It was not stored, and no other line would be.
    All,
}

impl Refusal {
    /// What an error says of a request of this many lines.
    pub(super) fn of(error: &Error, lines: usize) -> Self {
        if error.is_retryable() && error.retry_after().is_none() {
            return Self::Unknown;
        }
        let of_a_line = matches!(
            error.code(),
            Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists | Code::NotFound | Code::FailedPrecondition
        );
        match error.field().and_then(line) {
            Some(index) if index > 0 && index < lines => Self::Lines(index),
            Some(0) if of_a_line => Self::First,
            _ if lines > 1 && (of_a_line || error.code() == Code::ResourceExhausted) => Self::Lines(lines / 2),
            _ if of_a_line => Self::First,
            _ => Self::All,
        }
    }
}

/// The 3 of `jobs[3].payload`.
fn line(field: &str) -> Option<usize> {
    let (number, _) = field.strip_prefix("jobs[")?.split_once(']')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use tonic::Status;
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    fn of(code: Code, field: &str, lines: usize) -> Refusal {
        let mut details = ErrorDetails::new();
        details.add_bad_request_violation(field, "is wrong");
        Refusal::of(&Status::with_error_details(code, "is wrong", details).into(), lines)
    }

    #[test]
    fn the_lines_before_the_one_at_fault_are_sent_by_themselves() {
        assert_eq!(of(Code::InvalidArgument, "jobs[7].payload", 10), Refusal::Lines(7));
        assert_eq!(of(Code::InvalidArgument, "jobs[0].payload", 10), Refusal::First);
        assert_eq!(of(Code::OutOfRange, "", 10), Refusal::Lines(5));
        assert_eq!(of(Code::OutOfRange, "", 1), Refusal::First);
    }

    #[test]
    fn an_error_that_is_not_of_the_lines_ends_the_run() {
        assert_eq!(of(Code::PermissionDenied, "", 10), Refusal::All);
        assert_eq!(of(Code::ResourceExhausted, "", 10), Refusal::Lines(5));
        assert_eq!(of(Code::ResourceExhausted, "", 1), Refusal::All);
        assert_eq!(of(Code::Unavailable, "", 10), Refusal::Unknown);
    }
}
