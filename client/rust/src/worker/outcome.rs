//! The outcome of an attempt, which handlers return.

use std::{error::Error as StdError, fmt, time::Duration};

use bytes::Bytes;
use howdah_proto::v1::{self as proto, outcome::Outcome as End};
use serde::Serialize;

use crate::{Error, error::chain, time};

/// Maximum length of an error text that the client sends. The broker truncates the text to 16 KiB and marks it as truncated.
const LONGEST_ERROR: usize = 32 << 10;

/// Approximate bytes of an outcome in a message, besides its result or error text.
pub(crate) const OUTCOME_OVERHEAD: usize = 64;

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an outcome takes effect when the handler returns it"]
pub enum Outcome {
    /// The attempt succeeded. The result, at most 1 MiB, is kept with the job. A job with stages continues with the next one.
    Ack(Bytes),
    /// The attempt succeeded, and the job continues in this task type instead of its next stage.
    Advance {
        /// The payload of the next stage, unless the job keeps its payload unchanged.
        result: Bytes,
        /// The task type of the next stage.
        next_stage: String,
    },
    /// The attempt failed; the job is retried if it has attempts left.
    Retry {
        /// The error, kept with the job. Truncated at 16 KiB.
        error: String,
        /// Details for people, such as a backtrace; may be empty. Truncated at 16 KiB.
        details: String,
        /// The delay before the next attempt, at most a year. `None`: the retry policy's delay.
        after: Option<Duration>,
    },
    /// The attempt failed for good: the job is not retried.
    Fail {
        /// The error, kept with the job. Truncated at 16 KiB.
        error: String,
        /// Details for people, such as a backtrace; may be empty. Truncated at 16 KiB.
        details: String,
    },
    /// The job runs again after this time, at most a year. The attempt does not count.
    Snooze(Duration),
    /// Another worker may run the job at once. The attempt does not count.
    Release,
}

impl Outcome {
    /// The attempt succeeded, with a result to keep.
    pub fn ack(result: impl Into<Bytes>) -> Self {
        Self::Ack(result.into())
    }

    /// The attempt succeeded, and the job continues in this task type instead of its next stage.
    pub fn advance(result: impl Into<Bytes>, next_stage: impl Into<String>) -> Self {
        Self::Advance { result: result.into(), next_stage: next_stage.into() }
    }

    /// The attempt succeeded, with a result kept as JSON.
    pub fn json(result: &(impl Serialize + ?Sized)) -> Result<Self, JobError> {
        let bytes = serde_json::to_vec(result);
        bytes.map(Self::ack).map_err(|error| JobError::fatal(format!("the result is not JSON: {error}")))
    }

    /// The attempt succeeded, with a result kept as a protobuf message.
    pub fn message(result: &impl prost::Message) -> Self {
        Self::ack(result.encode_to_vec())
    }

    /// The attempt failed; the retry policy determines the delay.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry { error: error.to_string(), details: String::new(), after: None }
    }

    /// The attempt failed; the job is retried after this time, at most a year.
    pub fn retry_after(error: impl fmt::Display, delay: Duration) -> Self {
        Self::Retry { error: error.to_string(), details: String::new(), after: Some(delay) }
    }

    /// The attempt failed for good: the job is not retried.
    pub fn fail(error: impl fmt::Display) -> Self {
        Self::Fail { error: error.to_string(), details: String::new() }
    }

    /// The job runs again after this time, at most a year. The attempt does not count.
    pub fn snooze(delay: Duration) -> Self {
        Self::Snooze(delay)
    }

    /// Another worker may run the job at once. The attempt does not count.
    pub fn release() -> Self {
        Self::Release
    }

    pub(crate) fn into_proto(self) -> End {
        match self {
            Self::Ack(result) => End::Ack(proto::Ack { result, next_stage: String::new() }),
            Self::Advance { result, next_stage } => End::Ack(proto::Ack { result, next_stage }),
            Self::Retry { error, details, after } => {
                let retry_after = after.map(time::to_proto);
                End::Nack(proto::Nack { retry_after, ..failure(error, details) })
            }
            Self::Fail { error, details } => End::Nack(proto::Nack { no_retry: true, ..failure(error, details) }),
            Self::Snooze(delay) => End::Snooze(proto::Snooze { delay: Some(time::to_proto(delay)) }),
            Self::Release => End::Release(proto::Release {}),
        }
    }
}

/// Returns a failure with shortened texts, after which the job is retried.
fn failure(mut error: String, mut details: String) -> proto::Nack {
    for text in [&mut error, &mut details] {
        text.truncate(text.floor_char_boundary(LONGEST_ERROR));
    }
    proto::Nack { error, details, ..proto::Nack::default() }
}

/// The error of a handler. `?` converts every [`std::error::Error`] into one, which retries the job. For other errors use
/// `.map_err(JobError::retry)`.
///
/// It does not implement `std::error::Error`, because that would prevent the conversion from all errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobError(Outcome);

impl JobError {
    /// Retries the job after the retry policy's delay.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self(Outcome::retry(error))
    }

    /// Retries the job after this time, at most a year.
    pub fn retry_after(error: impl fmt::Display, delay: Duration) -> Self {
        Self(Outcome::retry_after(error, delay))
    }

    /// Fails the job for good, without a retry.
    pub fn fatal(error: impl fmt::Display) -> Self {
        Self(Outcome::fail(error))
    }

    /// Runs the job again after this time, at most a year. The attempt does not count.
    pub fn snooze(delay: Duration) -> Self {
        Self(Outcome::snooze(delay))
    }

    /// Lets another worker run the job at once. The attempt does not count.
    pub fn release() -> Self {
        Self(Outcome::release())
    }

    /// Sets the details of a failure, such as a backtrace. An error that `?` converts has none, because its debug format may
    /// contain secrets.
    #[must_use]
    pub fn with_details(mut self, text: impl fmt::Display) -> Self {
        if let Outcome::Retry { details, .. } | Outcome::Fail { details, .. } = &mut self.0 {
            *details = text.to_string();
        }
        self
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Outcome::Retry { error, .. } | Outcome::Fail { error, .. } => f.write_str(error),
            Outcome::Snooze(delay) => write!(f, "snoozed for {delay:?}"),
            Outcome::Release | Outcome::Ack(_) | Outcome::Advance { .. } => f.write_str("released"),
        }
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for JobError {
    fn from(error: E) -> Self {
        let text = chain(&error);
        // The payload does not parse, so a retry would fail too.
        let any: &(dyn StdError + 'static) = &error;
        match any.downcast_ref::<Error>() {
            Some(Error::Json(_)) => Self::fatal(text),
            _ => Self::retry(text),
        }
    }
}

/// The return types of handlers: `()`, a result to keep (`Bytes`, `Vec<u8>`, `String`, `&str`), an [`Outcome`], or a `Result` of
/// any of these whose error converts into a [`JobError`].
pub trait IntoOutcome {
    /// Converts to the outcome of the attempt.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Ack(Bytes::new())
    }
}

macro_rules! results {
    ($($type:ty),+) => {
        $(impl IntoOutcome for $type {
            fn into_outcome(self) -> Outcome {
                Outcome::ack(self)
            }
        })+
    };
}
results!(Bytes, Vec<u8>, String, &'static str);

impl IntoOutcome for JobError {
    fn into_outcome(self) -> Outcome {
        self.0
    }
}

impl<T: IntoOutcome, E: Into<JobError>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => error.into().0,
        }
    }
}

/// One word that names an outcome, for logs.
pub(crate) fn outcome_name(outcome: &End) -> &'static str {
    match outcome {
        End::Ack(_) => "done",
        End::Nack(_) => "failed",
        End::Snooze(_) => "snoozed",
        End::Release(_) => "released",
    }
}

/// Returns a failure after which the job is retried.
pub(crate) fn nack(error: String) -> End {
    End::Nack(proto::Nack { error, ..proto::Nack::default() })
}

/// Approximate size of an outcome in bytes.
pub(crate) fn size(outcome: &End) -> usize {
    let text = match outcome {
        End::Ack(ack) => ack.result.len(),
        End::Nack(nack) => nack.error.len() + nack.details.len(),
        End::Snooze(_) | End::Release(_) => 0,
    };
    text + OUTCOME_OVERHEAD
}

/// Replaces an outcome that is larger than a message by a nack. Otherwise the broker would end every stream on which the
/// outcome is sent.
pub(crate) fn fit(outcome: &mut End, max_bytes: usize) {
    let size = size(outcome);
    if size > max_bytes {
        *outcome = nack(format!("the result takes {size} bytes; the broker accepts at most {max_bytes}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_may_return_nothing_bytes_text_an_outcome_or_a_result() {
        assert_eq!(().into_outcome(), Outcome::ack(""));
        assert_eq!(vec![1].into_outcome(), Outcome::ack(vec![1]));
        assert_eq!("done".into_outcome(), Outcome::ack("done"));
        assert_eq!(Outcome::release().into_outcome(), Outcome::Release);
        let fine: Result<String, JobError> = Ok("done".into());
        assert_eq!(fine.into_outcome(), Outcome::ack("done"));
    }

    #[test]
    fn an_error_is_retried_with_its_causes_in_the_text() {
        fn fails() -> Result<(), JobError> {
            let number: u32 = "x".parse()?;
            let _ = number;
            Ok(())
        }
        let expected = Outcome::retry("invalid digit found in string");
        assert_eq!(fails().into_outcome(), expected);
        let detailed = JobError::retry("no route").with_details("backtrace").into_outcome();
        assert!(matches!(detailed, Outcome::Retry { details, .. } if details == "backtrace"));
    }

    #[test]
    fn a_payload_that_is_not_json_is_not_retried() {
        let error = serde_json::from_str::<u32>("x").unwrap_err();
        let outcome = Err::<(), _>(Error::from(error)).into_outcome();
        assert!(matches!(outcome, Outcome::Fail { .. }), "{outcome:?}");
    }

    #[test]
    fn a_huge_error_text_is_cut_before_it_is_sent() {
        let wire = Outcome::retry("ä".repeat(1 << 20)).into_proto();
        let End::Nack(nack) = wire else {
            panic!("{wire:?}");
        };
        assert_eq!(nack.error.len(), LONGEST_ERROR);
    }
}
