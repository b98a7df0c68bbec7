//! Outcomes of attempts, and the store's answers.

use std::time::Duration;

use bytes::Bytes;

use super::{Lease, Started, TaskTypeName};

/// Error of a failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptError {
    /// Error text.
    pub text: String,
    /// Details for people, such as a stack trace; empty if the worker sent none.
    pub details: String,
    /// Place in the worker's program where the error arose; empty if unknown.
    pub place: String,
}

impl AttemptError {
    /// Returns the size in bytes.
    fn weight(&self) -> usize {
        self.text.len() + self.details.len() + self.place.len()
    }
}

impl From<&str> for AttemptError {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }
}

/// Outcome of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The attempt succeeded.
    Ack {
        /// Result, kept in history; empty means no result.
        result: Bytes,
        /// Task type of the next stage, instead of the first one in the job's list.
        next_stage: Option<Box<TaskTypeName>>,
    },
    /// The attempt failed. The job may be retried, after the delay of its retry policy or the given delay.
    Retry {
        /// Error, kept with the job.
        error: AttemptError,
        /// Delay that replaces the delay of the retry policy.
        after: Option<Duration>,
    },
    /// The attempt failed, and the job must not be retried.
    Dead {
        /// Error, kept with the job.
        error: AttemptError,
    },
    /// The job runs again later; the attempt does not count.
    Snooze {
        /// Time until the job is ready again.
        delay: Duration,
    },
    /// The job is ready again immediately; the attempt does not count.
    Release,
}

impl Outcome {
    /// Number of the kind of outcome, stored with the token (`last_token` in `server/engine/schema/tables/jobs.sql`). A
    /// repeated settle with the same kind gets the first answer; one with another kind does not.
    pub const fn kind(&self) -> i64 {
        match self {
            Self::Ack { .. } => 0,
            Self::Retry { .. } => 1,
            Self::Dead { .. } => 2,
            Self::Snooze { .. } => 3,
            Self::Release => 4,
        }
    }

    /// Returns the task type of the next stage that an ack names, if it names one.
    pub fn next_stage(&self) -> Option<&TaskTypeName> {
        match self {
            Self::Ack { next_stage, .. } => next_stage.as_deref(),
            _ => None,
        }
    }

    /// Size of the result or the error, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::Ack { result, .. } => result.len(),
            Self::Retry { error, .. } | Self::Dead { error } => error.weight(),
            Self::Snooze { .. } | Self::Release => 0,
        }
    }
}

/// Outcome of one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// Outcome of the leased attempt.
    pub outcome: Outcome,
    /// Start of the leased attempt, if this broker has sent the job.
    pub started: Option<Started>,
}

/// Answer to a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleStatus {
    /// The outcome was committed, now or by an earlier call with the same token and kind of outcome.
    Ok,
    /// The caller does not hold the lease; nothing changed.
    LeaseLost,
    /// It is unknown whether the outcome was committed; the caller must send it again.
    Unavailable,
}
