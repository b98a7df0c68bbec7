//! Attempt of a job, as built-in workers receive it, and its ending.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use howdah_client::{Job, Outcome};
use howdah_core::job::TaskTypeName;

use super::results::ResultsFile;

/// Attempt of a job.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// Id of the job.
    pub id: i64,
    /// Task type of the job.
    pub task_type: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Number of attempts after which the job is dead.
    pub max_attempts: u32,
    /// Headers of the job.
    pub headers: HashMap<String, String>,
    /// Tags of the job.
    pub tags: Vec<String>,
    /// Payload of the job.
    pub payload: Bytes,
    /// Checkpoint that an earlier attempt stored. Empty: none.
    pub checkpoint: Bytes,
    /// File with the results of the dependencies. `None`: the job has no dependencies, or its worker takes no file.
    pub results: Option<ResultsFile>,
    /// W3C trace context of the producer. Empty: none.
    pub traceparent: String,
    /// W3C trace state of the producer. Empty: none.
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
            results: None,
            traceparent: job.traceparent.clone(),
            tracestate: job.tracestate.clone(),
        }
    }
}

/// Ending of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The attempt succeeded with this result.
    Done(Bytes),
    /// The attempt succeeded with this result, and the job continues in this stage.
    Advanced(Bytes, String),
    /// The attempt failed, and the retry policy applies.
    Failed(String),
    /// The attempt failed, and the job is retried after this time.
    RetryAfter(String, Duration),
    /// The attempt failed for good, because a retry would fail too.
    FailedForGood(String),
    /// The job is snoozed. The attempt does not count.
    Snoozed(Duration),
    /// The worker lost the job: the job was cancelled or timed out, or the lease was lost.
    Cancelled,
    /// The worker stops and releases the job. The attempt does not count.
    Released,
}

impl Ending {
    /// Ending of a succeeded attempt. With `next_stage`, the job continues in that stage instead of its planned next stage.
    pub fn done(result: Bytes, next_stage: Option<String>) -> Self {
        let Some(stage) = next_stage else { return Self::Done(result) };
        match TaskTypeName::parse(&stage) {
            Ok(_) => Self::Advanced(result, stage),
            Err(problem) => Self::Failed(format!("the next stage {problem}")),
        }
    }

    /// Converts the ending to an outcome for the broker. A cancelled job is released, in case its lease still exists. Otherwise
    /// the broker ignores the outcome.
    pub fn into_outcome(self) -> Outcome {
        match self {
            Self::Done(result) => Outcome::ack(result),
            Self::Advanced(result, next_stage) => Outcome::advance(result, next_stage),
            Self::Failed(error) => Outcome::retry(error),
            Self::RetryAfter(error, delay) => Outcome::retry_after(error, delay),
            Self::FailedForGood(error) => Outcome::fail(error),
            Self::Snoozed(delay) => Outcome::snooze(delay),
            Self::Cancelled | Self::Released => Outcome::release(),
        }
    }
}
