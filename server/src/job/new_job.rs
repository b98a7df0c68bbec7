//! A checked job on its way in.

use std::{
    collections::HashMap,
    time::{Duration, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Coordination, Progress, RetryOverride, TaskTypeName, TypeId};

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
    /// The type that it goes to when it is given up; in `options` once the type's number is known.
    pub fallback: Option<TaskTypeName>,
    /// What few jobs have.
    pub options: Options,
    /// What fewer jobs ask for.
    pub coordination: Option<Box<Coordination>>,
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

    /// Whether it needs none of what the full statement decides (`sql/enqueue/enqueue_keyed.sql`).
    pub fn is_plain(&self) -> bool {
        self.key.is_none() && self.start == Start::Now && self.coordination.is_none()
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

/// What few jobs have, in one JSON column, so that the others pay one bit for all of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The job's own retry policy.
    #[serde(rename = "retry_policy", skip_serializing_if = "RetryOverride::is_empty")]
    pub retry: RetryOverride,
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// The type's step that its rank was made with, if that is not the default and the priority is not 0:
    /// so the time that it became ready can be told from the rank. Intake sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_step_us: Option<i64>,
    /// The type that it goes to when it is given up; unset: what its type says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<TypeId>,
    /// The type that it had before it went to its fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_from: Option<TypeId>,
    /// Size of a payload that is kept apart; the store sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<i64>,
    /// How far it has come, 0 to 1; these four are written by `sql/settle/report_progress.sql`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_fraction: Option<f64>,
    /// The same, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_text: Option<String>,
    /// When the worker said so, µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_us: Option<i64>,
    /// What the next attempt shall find, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

impl Options {
    /// How far the job has come, if a worker said so.
    pub fn progress(&self) -> Option<Progress> {
        if self.progress_fraction.is_none() && self.progress_text.is_none() {
            return None;
        }
        let us = u64::try_from(self.progress_us.unwrap_or_default()).unwrap_or_default();
        Some(Progress {
            fraction: self.progress_fraction,
            text: self.progress_text.clone().unwrap_or_default(),
            updated: UNIX_EPOCH + Duration::from_micros(us),
        })
    }

    /// What an attempt has left for the next one; empty: nothing, or nothing that we wrote.
    pub fn checkpoint(&self) -> Bytes {
        let text = self.checkpoint.as_deref().unwrap_or_default();
        STANDARD.decode(text).unwrap_or_default().into()
    }

    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
