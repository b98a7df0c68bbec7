//! A job to enqueue.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use howdah_proto::v1 as proto;
use serde::Serialize;

use crate::{Result, time};

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

    /// Sets the payload. It may be any bytes, at most 1 MiB unless the broker is configured otherwise.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.0.payload = payload.into();
        self
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
    pub fn tags<S: Into<String>>(mut self, tags: impl IntoIterator<Item = S>) -> Self {
        self.0.tags.extend(tags.into_iter().map(Into::into));
        self
    }

    /// Sets the priority. Within the task type, jobs with a lower number run first. -1000 to 1000; default 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.0.priority = priority;
        self
    }

    /// Delays the start by this time, at most 10 years.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.0.start = Some(proto::new_job::Start::Delay(time::to_proto(delay)));
        self
    }

    /// Sets the start time, by the database's clock.
    pub fn run_at(mut self, time: SystemTime) -> Self {
        self.0.start = Some(proto::new_job::Start::RunAt(time.into()));
        self
    }

    /// Limits the number of attempts, after which the job is dead. 1 to 1,000; 0: the task type's setting.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.0.max_attempts = attempts;
        self
    }

    /// Sets the retry policy. Unset fields take the task type's settings.
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.0.retry_policy = Some(policy.0);
        self
    }

    /// Sets the key. At most one unfinished job of a type has a given key. By default, enqueueing another one returns the existing
    /// job, with [`is_new`](crate::Enqueued::is_new) false. At most 200 bytes.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.0.key = key.into();
        self
    }

    /// Sets the policy if another job holds the [`key`](Self::key). Default: that job is unchanged.
    pub fn key_policy(mut self, policy: proto::KeyPolicy) -> Self {
        self.0.key_policy = policy as i32;
        self
    }

    /// For [`KeyPolicy::ReplaceIfNewer`](proto::KeyPolicy): replaces only a job with a lower version.
    pub fn key_version(mut self, version: i64) -> Self {
        self.0.key_version = Some(version);
        self
    }

    /// Holds the key for this time after the enqueue, even if the job ends earlier. 1 s to 1 year.
    pub fn key_hold(mut self, hold: Duration) -> Self {
        self.0.key_hold = Some(time::to_proto(hold));
        self
    }

    /// For [`KeyPolicy::Debounce`](proto::KeyPolicy): the job starts at most this long after the first enqueue.
    pub fn key_debounce_limit(mut self, limit: Duration) -> Self {
        self.0.key_debounce_limit = Some(time::to_proto(limit));
        self
    }

    /// Sets what happens if this job waits for the running job that holds its key, and an attempt of that job fails. Default:
    /// that job is cancelled, and this one runs.
    pub fn on_holder_failure(mut self, policy: proto::HolderFailure) -> Self {
        self.0.on_holder_failure = policy as i32;
        self
    }

    /// Lets the job expire if it has not started within this time after the enqueue. 1 ms to 10 years.
    pub fn expire_after(mut self, after: Duration) -> Self {
        self.0.expiry = Some(proto::new_job::Expiry::ExpireAfter(time::to_proto(after)));
        self
    }

    /// Lets the job expire if it has not started by this time of the database's clock.
    pub fn expire_at(mut self, time: SystemTime) -> Self {
        self.0.expiry = Some(proto::new_job::Expiry::ExpireAt(time.into()));
        self
    }

    /// Sets the limit key, to which the task type's limits per key apply. At most 200 bytes.
    pub fn limit_key(mut self, key: impl Into<String>) -> Self {
        self.0.limit_key = key.into();
        self
    }

    /// Sets the fair key: the jobs of a task type are served round-robin between fair keys. At most 200 bytes.
    pub fn fair_key(mut self, key: impl Into<String>) -> Self {
        self.0.fair_key = key.into();
        self
    }

    /// Sets the task types of the further stages. An ack moves the job to its next stage. At most 100.
    pub fn next_stages<S: Into<String>>(mut self, stages: impl IntoIterator<Item = S>) -> Self {
        self.0.next_stages = stages.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the payload of the next stage. Default: the result of the previous stage.
    pub fn stage_payload(mut self, payload: proto::StagePayload) -> Self {
        self.0.stage_payload = payload as i32;
        self
    }

    /// Names this job within its request, for [`after_local`](Self::after_local).
    pub fn local_name(mut self, name: impl Into<String>) -> Self {
        self.0.local_name = name.into();
        self
    }

    /// Starts the job after these jobs have succeeded. At most 10,000.
    pub fn after(mut self, ids: impl IntoIterator<Item = i64>) -> Self {
        self.0.after = ids.into_iter().collect();
        self
    }

    /// Starts the job after these jobs of the same request have succeeded, by their local names.
    pub fn after_local<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.0.after_local = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the policy if one of the dependencies does not succeed. Default: this job is cancelled.
    pub fn on_dependency_failure(mut self, policy: proto::DependencyFailure) -> Self {
        self.0.on_dependency_failure = policy as i32;
        self
    }

    /// Records the job that created this one, for display only.
    pub fn parent_id(mut self, id: i64) -> Self {
        self.0.parent_id = id;
        self
    }

    /// Sets the timeout of an attempt, which its worker may extend. 1 ms to 30 days.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = Some(time::to_proto(timeout));
        self
    }

    /// Sets the fallback: after its last attempt, or a final failure, the job continues as a job of this type, with its id, payload
    /// and errors. It must be another type. Default: the task type's setting.
    pub fn fallback(mut self, task_type: impl Into<String>) -> Self {
        self.0.fallback = task_type.into();
        self
    }

    /// Sets whether history keeps the job if it succeeds. Default: the task type's setting.
    pub fn history(mut self, mode: proto::HistoryMode) -> Self {
        self.0.history = mode as i32;
        self
    }

    /// Sets the producer's W3C trace context (`traceparent`), which the worker receives. At most 200 bytes.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.0.traceparent = traceparent.into();
        self
    }

    /// Sets the producer's W3C trace state (`tracestate`), which the worker receives. At most 512 bytes.
    pub fn tracestate(mut self, tracestate: impl Into<String>) -> Self {
        self.0.tracestate = tracestate.into();
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

    /// Sets the delay after the first failure. 0 s to 30 days.
    pub fn initial_delay(mut self, delay: Duration) -> Self {
        self.0.initial_delay = Some(time::to_proto(delay));
        self
    }

    /// Sets the factor between consecutive delays. 1 to 100.
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.0.multiplier = Some(multiplier);
        self
    }

    /// Sets the maximum delay, before jitter. 0 s to 30 days.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.0.max_delay = Some(time::to_proto(delay));
        self
    }

    /// Sets the random fraction of the delay, 0 to 1; 0.1 means ±10 %.
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.0.jitter = Some(jitter);
        self
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
