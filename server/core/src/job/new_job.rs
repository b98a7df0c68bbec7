//! A validated job to be stored.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

use super::{JobOptions, TaskTypeName};

/// A job to be stored. `api::check` has validated every field.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The task type.
    pub task_type: TaskTypeName,
    /// Payload, opaque to Howdah.
    pub payload: Bytes,
    /// Headers, passed to the worker unchanged.
    pub headers: HashMap<String, String>,
    /// Priority, −1000 to 1000; lower runs first.
    pub priority: i16,
    /// Earliest start.
    pub start: Start,
    /// Maximum number of attempts; `None`: the task type's setting.
    pub max_attempts: Option<i16>,
    /// Key; at most one live job of the type has it.
    pub key: Option<String>,
    /// Timeout of an attempt.
    pub timeout: Option<Duration>,
    /// Task type that gets the job when its attempts are used up. Moves to `options` once the id of the type is known.
    pub fallback: Option<TaskTypeName>,
    /// Task types of the next stages. Like `fallback`, they move to `options` once their ids are known.
    pub next_stages: Vec<TaskTypeName>,
    /// Rarely used options; boxed, because most jobs have none.
    pub options: Option<Box<JobOptions>>,
}

/// Memory of a header in the map, besides its text: two strings and two allocations.
const HEADER_BYTES: usize = size_of::<(String, String)>() + 64;

impl NewJob {
    /// Returns the approximate heap memory of the job's fields, in bytes.
    pub fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len() + HEADER_BYTES).sum();
        let stages: usize = self.next_stages.iter().map(|name| name.as_str().len() + HEADER_BYTES).sum();
        let options = self.options.as_ref().map_or(0, |options| size_of::<JobOptions>() + options.weight());
        self.task_type.as_str().len()
            + self.payload.len()
            + self.key.as_ref().map_or(0, String::len)
            + headers
            + stages
            + options
    }

    /// The `LeasedJob::weight` of the job, computed as Postgres computes it.
    pub fn leased_weight(&self) -> u64 {
        // Postgres writes jsonb with a space after each colon and comma.
        let spaces = (2 * self.headers.len()).saturating_sub(1);
        let json = |headers| serde_json::to_string(headers).map_or(0, |json| json.len());
        let headers = if self.headers.is_empty() { 0 } else { json(&self.headers) + spaces };
        (self.payload.len() + headers) as u64
    }

    /// Whether the job may run immediately, has no key, and only its row must be stored (`sql/enqueue/enqueue.sql`).
    pub fn is_plain(&self) -> bool {
        self.key.is_none() && self.start == Start::Now && !self.needs_coordination()
    }

    /// Whether the job's options require the SQL function `howdah.enqueue_jobs`.
    pub fn needs_coordination(&self) -> bool {
        self.options.as_ref().is_some_and(|options| options.needs_coordination())
    }

    /// Options, mutable.
    pub fn options_mut(&mut self) -> &mut JobOptions {
        self.options.get_or_insert_default()
    }
}

/// Earliest start of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Immediately.
    Now,
    /// Not before this time, in µs after 1970 by the database's clock.
    At(i64),
    /// Not before this delay after the enqueue has passed.
    After(Duration),
}

/// The result of enqueuing one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// Id of the new job, or of the existing job that the outcome names.
    pub id: i64,
    /// Effect of the enqueue.
    pub outcome: EnqueueOutcome,
}

impl Enqueued {
    /// Result for a stored job.
    pub const fn new(id: i64) -> Self {
        Self { id, outcome: EnqueueOutcome::New }
    }

    /// Whether the enqueue stored the job.
    pub const fn is_new(self) -> bool {
        matches!(self.outcome, EnqueueOutcome::New | EnqueueOutcome::Next)
    }
}

/// Effect of an enqueue on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// The job is stored.
    New,
    /// The request repeats an earlier one.
    Repeated,
    /// Another job holds the key and stays unchanged.
    Kept,
    /// Another job holds the key and was replaced.
    Replaced,
    /// Another job holds the key with the same or a higher version, so this job is not stored.
    Stale,
    /// The job is stored and runs after the holder of the key.
    Next,
    /// Another job holds the key; it was replaced and delayed again.
    Debounced,
}
