//! A job to enqueue. `options.rs` has the methods of its options.

use std::time::Duration;

use bytes::Bytes;
use howdah_proto::v1 as proto;
use serde::Serialize;

use crate::{Result, setters::setters, time};

/// A job to enqueue. Only the task type is required.
///
/// Nothing is checked here. If the broker refuses a field, its error names the field and its bounds.
///
/// ```
/// # use howdah_client::{NewJob, RetryPolicy};
/// # use std::time::Duration;
/// let job = NewJob::new("email.send")
///     .payload("to=ann@example.com")
///     .priority(-5)
///     .delay(Duration::from_secs(60))
///     .max_attempts(3)
///     .retry_policy(RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(600)))
///     .key("welcome-ann");
/// assert_eq!(job.task_type(), "email.send");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a job does nothing until it is enqueued"]
pub struct NewJob(pub(crate) proto::NewJob);

impl NewJob {
    /// Creates a job of this type, a name of 1 to 200 bytes of `A-Z a-z 0-9 . _ : / -`.
    pub fn new(task_type: impl Into<String>) -> Self {
        Self(proto::NewJob { task_type: task_type.into(), ..proto::NewJob::default() })
    }

    /// The task type, to which workers subscribe.
    pub fn task_type(&self) -> &str {
        &self.0.task_type
    }

    setters! {
        /// Sets the payload. It may be any bytes, at most 1 MiB unless the broker is configured otherwise.
        payload(payload: impl Into<Bytes>) => 0.payload = payload.into();
    }

    /// Sets the payload to `value`, as JSON.
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Result<Self> {
        Ok(self.payload(serde_json::to_vec(value)?))
    }

    /// Sets the payload to a protobuf message.
    pub fn message(self, message: &impl prost::Message) -> Self {
        self.payload(message.encode_to_vec())
    }

    /// Adds a header for the worker. At most 64, 8 KiB together.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.headers.insert(name.into(), value.into());
        self
    }

    /// Adds tags for later searches, such as a customer or a batch. At most 16, each 1 to 64 bytes without control characters;
    /// duplicates count once.
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.tags.extend(tags.into_iter().map(Into::into));
        self
    }

    /// Converts to the protocol message.
    pub fn into_proto(self) -> proto::NewJob {
        self.0
    }
}

impl From<NewJob> for proto::NewJob {
    fn from(job: NewJob) -> Self {
        job.0
    }
}

impl From<proto::NewJob> for NewJob {
    fn from(job: proto::NewJob) -> Self {
        Self(job)
    }
}

/// The delay between a failed attempt and the next one. The kind determines the delay; `jitter` then changes it at random by
/// up to ± this fraction. Without a kind, the task type's kind is used, or else exponential backoff: `initial_delay *
/// multiplier^(n-1)` after failure n, at most `max_delay`.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use]
pub struct RetryPolicy(proto::RetryPolicy);

impl RetryPolicy {
    /// Takes every field from the task type's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Exponential backoff: doubles the delay from `initial` to `max`.
    pub fn exponential(initial: Duration, max: Duration) -> Self {
        Self::of_kind(proto::RetryPolicyKind::Exponential).initial_delay(initial).multiplier(2.0).max_delay(max)
    }

    /// Linear backoff: `step` after the first failure, twice as long after the second, and so on up to `max`.
    pub fn linear(step: Duration, max: Duration) -> Self {
        Self::of_kind(proto::RetryPolicyKind::Linear).initial_delay(step).max_delay(max)
    }

    /// Uses these delays in order; the last one repeats. 1 to 100 delays.
    pub fn list(delays: impl IntoIterator<Item = Duration>) -> Self {
        let mut policy = Self::of_kind(proto::RetryPolicyKind::List);
        policy.0.delays = delays.into_iter().map(time::to_proto).collect();
        policy
    }

    fn of_kind(kind: proto::RetryPolicyKind) -> Self {
        Self(proto::RetryPolicy { kind: kind as i32, ..proto::RetryPolicy::default() })
    }

    /// Uses the same delay after every failure.
    pub fn fixed(delay: Duration) -> Self {
        Self::of_kind(proto::RetryPolicyKind::Fixed).initial_delay(delay)
    }

    setters! {
        /// Sets the delay after the first failure. 0 s to 30 days.
        initial_delay(delay: Duration) => 0.initial_delay = Some(time::to_proto(delay));

        /// Sets the factor between consecutive delays. 1 to 100.
        multiplier(multiplier: f64) => 0.multiplier = Some(multiplier);

        /// Sets the maximum delay, before jitter. 0 s to 30 days.
        max_delay(delay: Duration) => 0.max_delay = Some(time::to_proto(delay));

        /// Sets the random fraction of the delay, 0 to 1; 0.1 means ±10 %.
        jitter(jitter: f64) => 0.jitter = Some(jitter);
    }

    /// Converts to the protocol message.
    pub fn into_proto(self) -> proto::RetryPolicy {
        self.0
    }
}

impl From<proto::RetryPolicy> for RetryPolicy {
    fn from(policy: proto::RetryPolicy) -> Self {
        Self(policy)
    }
}
