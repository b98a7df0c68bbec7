//! A job that was checked and is to be stored.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

use super::{JobOptions, TaskTypeName};

/// A job to be stored; every field was checked at the edge (`api::check`).
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The task type.
    pub task_type: TaskTypeName,
    /// Bytes that Howdah does not read.
    pub payload: Bytes,
    /// Sent to the worker unchanged.
    pub headers: HashMap<String, String>,
    /// −1000 to 1000; lower runs first.
    pub priority: i16,
    /// When it may start.
    pub start: Start,
    /// `None`: the task type's setting.
    pub max_attempts: Option<i16>,
    /// At most one live job of the type has this key.
    pub key: Option<String>,
    /// Timeout of one attempt.
    pub timeout: Option<Duration>,
    /// The task type that gets the job when its attempts are used up. Moves to `options` when the id of the type is known.
    pub fallback: Option<TaskTypeName>,
    /// The task types of the next stages. They move to `options`, too.
    pub next_stages: Vec<TaskTypeName>,
    /// Options that few jobs have; boxed, because most jobs have none.
    pub options: Option<Box<JobOptions>>,
}

/// What a name and a value take in a map, besides their bytes: two strings, two allocations.
const HEADER_BYTES: usize = size_of::<(String, String)>() + 64;

impl NewJob {
    /// Bytes that it takes in memory besides itself, about: what its fields point to.
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

    /// The `LeasedJob::weight` of the job, counted as Postgres counts it.
    pub fn leased_weight(&self) -> u64 {
        // Postgres writes jsonb with a space after each colon and comma.
        let spaces = (2 * self.headers.len()).saturating_sub(1);
        let json = |headers| serde_json::to_string(headers).map_or(0, |json| json.len());
        let headers = if self.headers.is_empty() { 0 } else { json(&self.headers) + spaces };
        (self.payload.len() + headers) as u64
    }

    /// Whether it may run at once and storing it is enough (`sql/enqueue/enqueue.sql`).
    pub fn is_plain(&self) -> bool {
        self.key.is_none() && self.start == Start::Now && !self.needs_coordination()
    }

    /// Whether its options require `howdah.enqueue_jobs`.
    pub fn needs_coordination(&self) -> bool {
        self.options.as_ref().is_some_and(|options| options.needs_coordination())
    }

    /// Its options, for a change.
    pub fn options_mut(&mut self) -> &mut JobOptions {
        self.options.get_or_insert_default()
    }
}

/// When a job may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At once.
    Now,
    /// Not before this many µs after 1970 on the database's clock.
    At(i64),
    /// Not before this long after the enqueue.
    After(Duration),
}

/// The result of enqueuing one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// Its id, or the id of the job that exists already.
    pub id: i64,
    /// What the enqueue did.
    pub outcome: EnqueueOutcome,
}

impl Enqueued {
    /// A job that is stored.
    pub const fn new(id: i64) -> Self {
        Self { id, outcome: EnqueueOutcome::New }
    }

    /// Whether the enqueue stored the job.
    pub const fn is_new(self) -> bool {
        matches!(self.outcome, EnqueueOutcome::New | EnqueueOutcome::Next)
    }
}

/// What an enqueue did with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// It is stored.
    New,
    /// The request is a repeat.
    Repeated,
    /// Another job has the key, and stays unchanged.
    Kept,
    /// Another job has the key, and was changed.
    Replaced,
    /// Another job has the key with the same or a higher version.
    Stale,
    /// It is stored and runs after the job that has the key.
    Next,
    /// Another job has the key; it was changed and delayed again.
    Debounced,
}
