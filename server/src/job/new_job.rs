//! A checked job on its way in.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{RetryOverride, TaskTypeName, TypeId};

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

    /// Whether it needs none of what the full statement decides (`sql/enqueue_full.sql`).
    pub fn is_plain(&self) -> bool {
        self.key.is_none() && self.start == Start::Now
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
    #[serde(skip_serializing_if = "RetryOverride::is_empty")]
    pub retry: RetryOverride,
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// The type that it goes to when it is given up; unset: what its type says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<TypeId>,
    /// The type that it had before it went to its fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_from: Option<TypeId>,
    /// Size of a payload that is kept apart; the store sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<i64>,
}

impl Options {
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
    /// Whether this call made it.
    pub is_new: bool,
}
