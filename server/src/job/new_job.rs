//! A checked job on its way in.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

use super::{JobOptions, TaskTypeName};

/// A job to be stored; every field was checked at the edge (`api::check`).
#[derive(Clone, Debug)]
pub struct NewJob {
    /// What workers subscribe by.
    pub task_type: TaskTypeName,
    /// Opaque.
    pub payload: Bytes,
    /// Handed to the worker as they are.
    pub headers: HashMap<String, String>,
    /// −1000 to 1000, lower first.
    pub priority: i16,
    /// When it may start.
    pub start: Start,
    /// `None`: the task type's setting.
    pub max_attempts: Option<i16>,
    /// One live job of its type has it.
    pub key: Option<String>,
    /// Of one attempt.
    pub timeout: Option<Duration>,
    /// The type that it goes to when it is out of attempts; in `options` once the type's number is known.
    pub fallback: Option<TaskTypeName>,
    /// The types that it goes on to, likewise.
    pub next_stages: Vec<TaskTypeName>,
    /// What few jobs have; boxed, since most jobs have none of it.
    pub options: Option<Box<JobOptions>>,
}

impl NewJob {
    /// Bytes that it weighs in buffers and windows.
    pub fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        self.payload.len() + headers
    }

    /// What `LeasedJob::weight` will be, as Postgres would count it.
    pub fn leased_weight(&self) -> u64 {
        // jsonb is shown with a space after each colon and comma.
        let spaces = (2 * self.headers.len()).saturating_sub(1);
        let json = |headers| serde_json::to_string(headers).map_or(0, |json| json.len());
        let headers = if self.headers.is_empty() { 0 } else { json(&self.headers) + spaces };
        (self.payload.len() + headers) as u64
    }

    /// Whether it is stored as it is, and may run at once (`sql/enqueue/enqueue.sql`).
    pub fn is_plain(&self) -> bool {
        self.key.is_none() && self.start == Start::Now && !self.needs_coordination()
    }

    /// Whether its options need a decision of the store.
    pub fn needs_coordination(&self) -> bool {
        self.options.as_ref().is_some_and(|options| options.needs_coordination())
    }

    /// Its options, to set one.
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

/// What became of one job of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// Its id, or that of the job that was there already.
    pub id: i64,
    /// What the call did.
    pub outcome: EnqueueOutcome,
}

impl Enqueued {
    /// A job that is stored.
    pub const fn new(id: i64) -> Self {
        Self { id, outcome: EnqueueOutcome::New }
    }

    /// Whether the call made it.
    pub const fn is_new(self) -> bool {
        matches!(self.outcome, EnqueueOutcome::New | EnqueueOutcome::Next)
    }
}

/// What an enqueue did with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// It is stored.
    New,
    /// The request was made before.
    Repeated,
    /// Another job has the key, and stays as it was.
    Kept,
    /// Another job has the key, and was changed.
    Replaced,
    /// Another job has the key, of a version that is not lower.
    Stale,
    /// It is stored, and runs after the job that has the key.
    Next,
    /// Another job has the key, and was put off.
    Debounced,
}
