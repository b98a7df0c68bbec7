//! Continues after a failed request with several lines: decides which lines to send again, and shows the position for `--resume`.

use std::{fmt, str::FromStr};

use howdah_client::Error;
use tonic::Code;

/// Number of the first line to send. If an earlier request got no answer, also contains its last line and its request key: the
/// repeated request is identical, so the broker stores its lines once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct Position {
    pub(super) first: u64,
    pub(super) request: Option<Request>,
}

/// Last line and request key of a request without an answer, which may have been stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) last: u64,
    pub(super) key: String,
}

impl Position {
    pub(super) const fn line(first: u64) -> Self {
        Self { first, request: None }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            None => write!(f, "{}", self.first),
            Some(Request { last, key }) => write!(f, "{}-{last}:{key}", self.first),
        }
    }
}

impl FromStr for Position {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "use the number of a line, or the position that an earlier run printed: FIRST-LAST:KEY";
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0).ok_or(WRONG);
        let Some((lines, key)) = text.split_once(':') else {
            return Ok(Self::line(number(text)?));
        };
        let (first, last) = lines.split_once('-').ok_or(WRONG)?;
        let (first, last) = (number(first)?, number(last)?);
        if last < first || key.is_empty() {
            return Err(WRONG);
        }
        Ok(Self { first, request: Some(Request { last, key: key.to_owned() }) })
    }
}

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

    #[test]
    fn a_position_is_read_as_it_was_printed() {
        for text in ["1", "401", "401-900:0199"] {
            assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
        }
        for text in ["", "0", "-1", "x", "5-4:k", "5-6", "5-6:", "0-6:k"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }

    fn classified(code: Code, field: &str, lines: usize) -> Refusal {
        let mut details = ErrorDetails::new();
        details.add_bad_request_violation(field, "is wrong");
        Refusal::classify(&Status::with_error_details(code, "is wrong", details).into(), lines)
    }

    #[test]
    fn the_lines_before_a_refused_line_are_sent_separately() {
        assert_eq!(classified(Code::InvalidArgument, "jobs[7].payload", 10), Refusal::Lines(7));
        assert_eq!(classified(Code::InvalidArgument, "jobs[0].payload", 10), Refusal::First);
        assert_eq!(classified(Code::OutOfRange, "", 10), Refusal::Lines(5));
        assert_eq!(classified(Code::OutOfRange, "", 1), Refusal::First);
    }

    #[test]
    fn an_error_unrelated_to_a_line_ends_the_run() {
        assert_eq!(classified(Code::PermissionDenied, "", 10), Refusal::All);
        assert_eq!(classified(Code::ResourceExhausted, "", 10), Refusal::Lines(5));
        assert_eq!(classified(Code::ResourceExhausted, "", 1), Refusal::All);
        assert_eq!(classified(Code::Unavailable, "", 10), Refusal::Unknown);
    }
}
