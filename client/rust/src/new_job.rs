//! A job to enqueue.

use std::time::{Duration, SystemTime};

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
pub struct NewJob(proto::NewJob);

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

        /// Sets the priority. Within the task type, jobs with a lower number run first. -1000 to 1000; default 0.
        priority(priority: i32) => 0.priority = priority;

        /// Delays the start by this time, at most 10 years.
        delay(delay: Duration) => 0.start = Some(proto::new_job::Start::Delay(time::to_proto(delay)));

        /// Sets the start time, by the database's clock.
        run_at(time: SystemTime) => 0.start = Some(proto::new_job::Start::RunAt(time.into()));

        /// Limits the number of attempts, after which the job is dead. 1 to 1,000; 0: the task type's setting.
        max_attempts(attempts: u32) => 0.max_attempts = attempts;

        /// Sets the retry policy. Unset fields take the task type's settings.
        retry_policy(policy: RetryPolicy) => 0.retry_policy = Some(policy.0);

        /// Sets the key. At most one unfinished job of a type has a given key. By default, enqueueing another one returns the
        /// existing job, with [`is_new`](crate::Enqueued::is_new) false. At most 200 bytes.
        key(key: impl Into<String>) => 0.key = key.into();

        /// Sets the policy if another job holds the [`key`](Self::key). Default: that job is unchanged.
        key_policy(policy: proto::KeyPolicy) => 0.key_policy = policy as i32;

        /// For [`KeyPolicy::ReplaceIfNewer`](proto::KeyPolicy): replaces only a job with a lower version.
        key_version(version: i64) => 0.key_version = Some(version);

        /// Holds the key for this time after the enqueue, even if the job ends earlier. 1 s to 1 year.
        key_hold(hold: Duration) => 0.key_hold = Some(time::to_proto(hold));

        /// For [`KeyPolicy::Debounce`](proto::KeyPolicy): the job starts at most this long after the first enqueue.
        key_debounce_limit(limit: Duration) => 0.key_debounce_limit = Some(time::to_proto(limit));

        /// Sets what happens if this job waits for the running job that holds its key, and an attempt of that job fails. Default:
        /// that job is cancelled, and this one runs.
        on_holder_failure(policy: proto::HolderFailure) => 0.on_holder_failure = policy as i32;

        /// Lets the job expire if it has not started within this time after the enqueue. 1 ms to 10 years.
        expire_after(after: Duration) => 0.expiry = Some(proto::new_job::Expiry::ExpireAfter(time::to_proto(after)));

        /// Lets the job expire if it has not started by this time of the database's clock.
        expire_at(time: SystemTime) => 0.expiry = Some(proto::new_job::Expiry::ExpireAt(time.into()));

        /// Sets the limit key, to which the task type's limits per key apply. At most 200 bytes.
        limit_key(key: impl Into<String>) => 0.limit_key = key.into();

        /// Starts the job only while fewer than this many jobs with its limit key run, 1 to 1,000,000. Of the waiting jobs,
        /// those with a larger number start first.
        limit_max(jobs: u32) => 0.limit_max = jobs;

        /// Sets the fair key: the jobs of a task type are served round-robin between fair keys. At most 200 bytes.
        fair_key(key: impl Into<String>) => 0.fair_key = key.into();

        /// Sets the task types of the further stages. An ack moves the job to its next stage. At most 100.
        next_stages(stages: impl IntoIterator<Item = impl Into<String>>) =>
            0.next_stages = stages.into_iter().map(Into::into).collect();

        /// Sets the payload of the next stage. Default: the result of the previous stage.
        stage_payload(payload: proto::StagePayload) => 0.stage_payload = payload as i32;

        /// Names this job within its request, for [`after_local`](Self::after_local).
        local_name(name: impl Into<String>) => 0.local_name = name.into();

        /// Starts the job after these jobs have succeeded. At most 10,000.
        after(ids: impl IntoIterator<Item = i64>) => 0.after = ids.into_iter().collect();

        /// Starts the job after these jobs of the same request have succeeded, by their local names.
        after_local(names: impl IntoIterator<Item = impl Into<String>>) =>
            0.after_local = names.into_iter().map(Into::into).collect();

        /// Sets the policy if one of the dependencies does not succeed. Default: this job is cancelled.
        on_dependency_failure(policy: proto::DependencyFailure) => 0.on_dependency_failure = policy as i32;

        /// Records the job that created this one, for display only.
        parent_id(id: i64) => 0.parent_id = id;

        /// Sets the timeout of an attempt, which its worker may extend. 1 ms to 30 days.
        timeout(timeout: Duration) => 0.timeout = Some(time::to_proto(timeout));

        /// Sets the fallback: after its last attempt, or a final failure, the job continues as a job of this type, with its id,
        /// payload and errors. It must be another type. Default: the task type's setting.
        fallback(task_type: impl Into<String>) => 0.fallback = task_type.into();

        /// Sets whether history keeps the job if it succeeds. Default: the task type's setting.
        history(mode: proto::HistoryMode) => 0.history = mode as i32;

        /// Sets the producer's W3C trace context (`traceparent`), which the worker receives. At most 200 bytes.
        traceparent(traceparent: impl Into<String>) => 0.traceparent = traceparent.into();

        /// Sets the producer's W3C trace state (`tracestate`), which the worker receives. At most 512 bytes.
        tracestate(tracestate: impl Into<String>) => 0.tracestate = tracestate.into();
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
