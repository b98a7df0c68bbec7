//! What a worker in the box is told of a job, and how an attempt ends.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use howdah_client::{Job, Outcome};

/// One attempt of one job.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// The job's id.
    pub id: i64,
    /// Its type.
    pub task_type: String,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// How many there will be at most.
    pub max_attempts: u32,
    /// What was enqueued.
    pub headers: HashMap<String, String>,
    /// What was enqueued.
    pub payload: Bytes,
    /// What an attempt before this one has left for it; empty: nothing.
    pub checkpoint: Bytes,
    /// The producer's W3C trace context; empty: none.
    pub traceparent: String,
    /// The producer's W3C trace state; empty: none.
    pub tracestate: String,
}

impl From<&Job> for Attempt {
    fn from(job: &Job) -> Self {
        Self {
            id: job.id,
            task_type: job.task_type.clone(),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            headers: job.headers.clone(),
            payload: job.payload.clone(),
            checkpoint: job.last_checkpoint().cloned().unwrap_or_default(),
            traceparent: job.traceparent.clone(),
            tracestate: job.tracestate.clone(),
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It succeeded, with this result.
    Done(Bytes),
    /// To be tried again, when the retry policy says.
    Failed(String),
    /// To be tried again after this long.
    FailedUntil(String, Duration),
    /// It would fail the next time too.
    FailedForGood(String),
    /// To be run later, the attempt not counted.
    Snoozed(Duration),
    /// The job is not ours any more: cancelled, timed out, or its lease was lost.
    Cancelled,
    /// This worker stops: it goes back, the attempt not counted.
    GivenUp,
}

impl Ending {
    /// As the broker is told. What a cancelled job returns is not looked at, unless its lease
    /// turns out to be alive: then it goes back.
    pub fn into_outcome(self) -> Outcome {
        match self {
            Self::Done(result) => Outcome::ack(result),
            Self::Failed(error) => Outcome::retry(error),
            Self::FailedUntil(error, delay) => Outcome::retry_after(error, delay),
            Self::FailedForGood(error) => Outcome::fail(error),
            Self::Snoozed(delay) => Outcome::snooze(delay),
            Self::Cancelled | Self::GivenUp => Outcome::release(),
        }
    }
}
