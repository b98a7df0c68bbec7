//! An attempt of a job, as built-in workers get it, and its ending.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use howdah_client::{Job, Outcome};
use howdah_server::job::TaskTypeName;

/// One attempt of one job.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// The job's id.
    pub id: i64,
    /// Its type.
    pub task_type: String,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The number of attempts after which the job is dead.
    pub max_attempts: u32,
    /// The headers.
    pub headers: HashMap<String, String>,
    /// The tags.
    pub tags: Vec<String>,
    /// The payload.
    pub payload: Bytes,
    /// The checkpoint that an earlier attempt stored; empty: none.
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
            tags: job.tags.clone(),
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
    /// It succeeded, with this result, and the job goes on in this stage.
    Advanced(Bytes, String),
    /// It failed; the retry policy decides when it is tried again.
    Failed(String),
    /// It failed, and is tried again after this time.
    FailedUntil(String, Duration),
    /// It failed, and would fail the next time too.
    FailedForGood(String),
    /// The job runs again later; the attempt does not count.
    Snoozed(Duration),
    /// The worker has lost the job: it was cancelled, timed out, or its lease was lost.
    Cancelled,
    /// The worker stops and releases the job; the attempt does not count.
    Released,
}

impl Ending {
    /// It succeeded, with this result. If it names a stage, the job goes on there instead of in its own next one.
    pub fn done(result: Bytes, next_stage: Option<String>) -> Self {
        let Some(stage) = next_stage else { return Self::Done(result) };
        match TaskTypeName::parse(&stage) {
            Ok(_) => Self::Advanced(result, stage),
            Err(problem) => Self::Failed(format!("the next stage {problem}")),
        }
    }

    /// The outcome for the broker. It does not use that of a cancelled job, unless the lease turns out to exist: then
    /// the job is released.
    pub fn into_outcome(self) -> Outcome {
        match self {
            Self::Done(result) => Outcome::ack(result),
            Self::Advanced(result, next_stage) => Outcome::advance(result, next_stage),
            Self::Failed(error) => Outcome::retry(error),
            Self::FailedUntil(error, delay) => Outcome::retry_after(error, delay),
            Self::FailedForGood(error) => Outcome::fail(error),
            Self::Snoozed(delay) => Outcome::snooze(delay),
            Self::Cancelled | Self::Released => Outcome::release(),
        }
    }
}
