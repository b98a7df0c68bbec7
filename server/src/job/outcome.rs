//! How an attempt ends, and what became of saying so.

use std::time::Duration;

use bytes::Bytes;

use super::{Lease, TaskTypeName};

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It succeeded.
    Ack {
        /// Kept in history; empty: none.
        result: Bytes,
        /// Where it goes on to, instead of to its next stage.
        next_stage: Option<Box<TaskTypeName>>,
    },
    /// It failed and may be tried again, after the policy's delay or the given one.
    Retry {
        /// Kept with the job.
        error: String,
        /// Instead of the policy's delay.
        after: Option<Duration>,
    },
    /// It failed for good.
    Dead {
        /// Kept with the job.
        error: String,
    },
    /// Later, without using up an attempt.
    Snooze {
        /// For how long.
        delay: Duration,
    },
    /// Back to the queue at once, without using up an attempt.
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

    /// Bytes of what it carries.
    pub fn weight(&self) -> usize {
        match self {
            Self::Ack { result, .. } => result.len(),
            Self::Retry { error, .. } | Self::Dead { error } => error.len(),
            Self::Snooze { .. } | Self::Release => 0,
        }
    }
}

/// An outcome of one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// Whose.
    pub lease: Lease,
    /// What.
    pub outcome: Outcome,
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleStatus {
    /// Committed, now or by an earlier call with the same token and kind of outcome.
    Ok,
    /// The lease was not the caller's; nothing changed.
    LeaseLost,
    /// Not known to have taken effect; say it again.
    Unavailable,
}
