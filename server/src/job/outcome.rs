//! How an attempt ends, and what the store answers.

use std::time::Duration;

use bytes::Bytes;

use super::{Lease, Started, TaskTypeName};

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It succeeded.
    Ack {
        /// Kept in history; empty means no result.
        result: Bytes,
        /// The task type of the next stage, instead of the first in its list.
        next_stage: Option<Box<TaskTypeName>>,
    },
    /// It failed and may be retried, after the delay of its retry policy or the given one.
    Retry {
        /// Kept with the job.
        error: String,
        /// Replaces the delay of the retry policy.
        after: Option<Duration>,
    },
    /// It failed and must not be retried.
    Dead {
        /// Kept with the job.
        error: String,
    },
    /// Runs again later; the attempt does not count.
    Snooze {
        /// How long to wait.
        delay: Duration,
    },
    /// Is ready again at once; the attempt does not count.
    Release,
}

impl Outcome {
    /// What kind it is, as a number that is kept with the token (`last_token` in `server/schema/tables/jobs.sql`): the
    /// same outcome again is answered as the first was, another one is not.
    pub const fn kind(&self) -> i64 {
        match self {
            Self::Ack { .. } => 0,
            Self::Retry { .. } => 1,
            Self::Dead { .. } => 2,
            Self::Snooze { .. } => 3,
            Self::Release => 4,
        }
    }

    /// The next stage that it names.
    pub fn next_stage(&self) -> Option<&TaskTypeName> {
        match self {
            Self::Ack { next_stage, .. } => next_stage.as_deref(),
            _ => None,
        }
    }

    /// Bytes of what it carries.
    pub fn weight(&self) -> usize {
        match self {
            Self::Ack { result, .. } => result.len(),
            Self::Retry { error, .. } | Self::Dead { error } => error.len(),
            Self::Snooze { .. } | Self::Release => 0,
        }
    }
}

/// The outcome of one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// How its attempt ended.
    pub outcome: Outcome,
    /// When its attempt started, if this broker has sent it.
    pub started: Option<Started>,
}

/// The answer to a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleStatus {
    /// Committed, now or by an earlier call with the same token and kind of outcome.
    Ok,
    /// The lease was not the caller's; nothing changed.
    LeaseLost,
    /// It is not known whether it was committed; send it again.
    Unavailable,
}
