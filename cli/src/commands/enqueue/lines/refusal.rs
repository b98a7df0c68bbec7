//! Classifies errors of requests with several lines.

use howdah_client::Error;
use tonic::Code;

/// Reaction to a failed request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No answer: the request may have been stored, so it can only be repeated with the same request key.
    Unknown,
    /// The request was not stored. The next request should send only this many of its first lines, to isolate the refused line.
    Lines(usize),
    /// The request was not stored because of its first line.
    First,
    /// The request was not stored, and the broker would refuse every other line too, for example because of a missing right.
    All,
}

impl Refusal {
    /// Classifies an error of a request with this many lines.
    pub(super) fn classify(error: &Error, lines: usize) -> Self {
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

/// Extracts the job index from a field path, such as 3 from `jobs[3].payload`.
fn line(field: &str) -> Option<usize> {
    let (number, _) = field.strip_prefix("jobs[")?.split_once(']')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use tonic::Status;
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    fn classified(code: Code, field: &str, lines: usize) -> Refusal {
        let mut details = ErrorDetails::new();
        details.add_bad_request_violation(field, "is wrong");
        Refusal::classify(&Status::with_error_details(code, "is wrong", details).into(), lines)
    }

    #[test]
    fn the_lines_before_the_one_at_fault_are_sent_by_themselves() {
        assert_eq!(classified(Code::InvalidArgument, "jobs[7].payload", 10), Refusal::Lines(7));
        assert_eq!(classified(Code::InvalidArgument, "jobs[0].payload", 10), Refusal::First);
        assert_eq!(classified(Code::OutOfRange, "", 10), Refusal::Lines(5));
        assert_eq!(classified(Code::OutOfRange, "", 1), Refusal::First);
    }

    #[test]
    fn an_error_that_is_not_of_the_lines_ends_the_run() {
        assert_eq!(classified(Code::PermissionDenied, "", 10), Refusal::All);
        assert_eq!(classified(Code::ResourceExhausted, "", 10), Refusal::Lines(5));
        assert_eq!(classified(Code::ResourceExhausted, "", 1), Refusal::All);
        assert_eq!(classified(Code::Unavailable, "", 10), Refusal::Unknown);
    }
}
