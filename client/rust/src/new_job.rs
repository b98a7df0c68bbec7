//! A job to be enqueued, built field by field.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use howdah_proto::v1 as proto;
use serde::Serialize;

use crate::{Result, time};

/// A job to be enqueued. Only the task type is required.
///
/// Nothing is checked here: the broker names the field and its bounds when it refuses one.
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
    /// A job of this type: 1 to 200 bytes of `A-Z a-z 0-9 . _ : / -`.
    pub fn new(task_type: impl Into<String>) -> Self {
        Self(proto::NewJob { task_type: task_type.into(), ..proto::NewJob::default() })
    }

    /// The name workers subscribe by.
    pub fn task_type(&self) -> &str {
        &self.0.task_type
    }

    /// Opaque to Howdah. At most 1 MiB unless the broker is configured otherwise.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.0.payload = payload.into();
        self
    }

    /// Makes `value`, as JSON, the payload.
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Result<Self> {
        Ok(self.payload(serde_json::to_vec(value)?))
    }

    /// Hands the worker a header. At most 64, 8 KiB together.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.headers.insert(name.into(), value.into());
        self
    }

    /// Lower goes first, strictly, inside the task type. -1000 to 1000; default 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.0.priority = priority;
        self
    }

    /// Not before this long from now. At most 10 years.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.0.start = Some(proto::new_job::Start::Delay(time::to_proto(delay)));
        self
    }

    /// Not before this time of the database's clock.
    pub fn run_at(mut self, time: SystemTime) -> Self {
        self.0.start = Some(proto::new_job::Start::RunAt(time.into()));
        self
    }

    /// Deliveries at most, then the job is dead. 1 to 1,000; 0 takes the task type's setting.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.0.max_attempts = attempts;
        self
    }

    /// When to try again after a failure. What it leaves unset is the task type's setting.
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.0.retry_policy = Some(policy.0);
        self
    }

    /// At most one unfinished job of this type has this key: enqueuing another returns the one
    /// that is there, with [`is_new`](crate::Enqueued::is_new) false. At most 200 bytes.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.0.key = key.into();
        self
    }

    /// What happens when another job has the [`key`](Self::key); default: that one stays as it is.
    pub fn key_policy(mut self, policy: proto::KeyPolicy) -> Self {
        self.0.key_policy = policy as i32;
        self
    }

    /// With [`KeyPolicy::ReplaceIfNewer`](proto::KeyPolicy): replaces a job of a lower version only.
    pub fn key_version(mut self, version: i64) -> Self {
        self.0.key_version = Some(version);
        self
    }

    /// Holds the key for so long from now, whether the job has finished or not. 1 s to 1 year.
    pub fn key_hold(mut self, hold: Duration) -> Self {
        self.0.key_hold = Some(time::to_proto(hold));
        self
    }

    /// With [`KeyPolicy::Debounce`](proto::KeyPolicy): the job starts at most so long after the first enqueue.
    pub fn key_debounce_limit(mut self, limit: Duration) -> Self {
        self.0.key_debounce_limit = Some(time::to_proto(limit));
        self
    }

    /// Not at all when it has not begun so long after it was enqueued. 1 ms to 10 years.
    pub fn expire_after(mut self, after: Duration) -> Self {
        self.0.expiry = Some(proto::new_job::Expiry::ExpireAfter(time::to_proto(after)));
        self
    }

    /// Not at all when it has not begun by this time of the database's clock.
    pub fn expire_at(mut self, time: SystemTime) -> Self {
        self.0.expiry = Some(proto::new_job::Expiry::ExpireAt(time.into()));
        self
    }

    /// What the task type's limits of keys count it by. At most 200 bytes.
    pub fn limit_key(mut self, key: impl Into<String>) -> Self {
        self.0.limit_key = key.into();
        self
    }

    /// Whose turn it is: waiting jobs of a task type are shared evenly between fair keys. At most 200 bytes.
    pub fn fair_key(mut self, key: impl Into<String>) -> Self {
        self.0.fair_key = key.into();
        self
    }

    /// Goes on to these task types, one after the other, each time it is acked. At most 100.
    pub fn next_stages<S: Into<String>>(mut self, stages: impl IntoIterator<Item = S>) -> Self {
        self.0.next_stages = stages.into_iter().map(Into::into).collect();
        self
    }

    /// What the next stage gets as payload; default: the result.
    pub fn stage_payload(mut self, payload: proto::StagePayload) -> Self {
        self.0.stage_payload = payload as i32;
        self
    }

    /// A name for this job inside its request, for [`after_local`](Self::after_local).
    pub fn local_name(mut self, name: impl Into<String>) -> Self {
        self.0.local_name = name.into();
        self
    }

    /// Not before these jobs have succeeded. At most 10,000.
    pub fn after(mut self, ids: impl IntoIterator<Item = i64>) -> Self {
        self.0.after = ids.into_iter().collect();
        self
    }

    /// Not before these jobs of the same request have succeeded, by their local names.
    pub fn after_local<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.0.after_local = names.into_iter().map(Into::into).collect();
        self
    }

    /// What happens when one of those does not succeed; default: this job is cancelled.
    pub fn on_dependency_failure(mut self, what: proto::DependencyFailure) -> Self {
        self.0.on_dependency_failure = what as i32;
        self
    }

    /// The job that made this one, for people.
    pub fn parent_id(mut self, id: i64) -> Self {
        self.0.parent_id = id;
        self
    }

    /// An attempt that takes longer is over, unless its worker extends it. 1 ms to 30 days.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = Some(time::to_proto(timeout));
        self
    }

    /// When its attempts are used up, or it fails for good, the job goes on as a job of this type, with its
    /// id, payload and errors. Another type than its own; without this, what the task type's settings say.
    pub fn fallback(mut self, task_type: impl Into<String>) -> Self {
        self.0.fallback = task_type.into();
        self
    }

    /// The W3C trace context of the producer (`traceparent`), handed to the worker. At most 200 bytes.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.0.traceparent = traceparent.into();
        self
    }

    /// The W3C trace state of the producer (`tracestate`), handed to the worker. At most 512 bytes.
    pub fn tracestate(mut self, tracestate: impl Into<String>) -> Self {
        self.0.tracestate = tracestate.into();
        self
    }

    /// As it goes over the wire.
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

/// How long to wait before attempt n + 1 after attempt n failed: what its kind says, moved at random by up to
/// ± `jitter`. Without a kind it is that of the task type, or exponential: `initial_delay * multiplier^(n-1)`,
/// at most `max_delay`.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use]
pub struct RetryPolicy(proto::RetryPolicy);

impl RetryPolicy {
    /// Leaves every field to the task type's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Doubles from `initial` to `max`.
    pub fn exponential(initial: Duration, max: Duration) -> Self {
        Self::of_kind(proto::RetryPolicyKind::Exponential).initial_delay(initial).multiplier(2.0).max_delay(max)
    }

    /// `step` after the first failure, twice as much after the second, and so on up to `max`.
    pub fn linear(step: Duration, max: Duration) -> Self {
        Self::of_kind(proto::RetryPolicyKind::Linear).initial_delay(step).max_delay(max)
    }

    /// These delays, one after each failure; the last one repeats. 1 to 100.
    pub fn list(delays: impl IntoIterator<Item = Duration>) -> Self {
        let mut policy = Self::of_kind(proto::RetryPolicyKind::List);
        policy.0.delays = delays.into_iter().map(time::to_proto).collect();
        policy
    }

    fn of_kind(kind: proto::RetryPolicyKind) -> Self {
        Self(proto::RetryPolicy { kind: kind as i32, ..proto::RetryPolicy::default() })
    }

    /// Waits the same time after every failure.
    pub fn fixed(delay: Duration) -> Self {
        Self::of_kind(proto::RetryPolicyKind::Fixed).initial_delay(delay)
    }

    /// Delay after the first failure. 0 s to 30 days.
    pub fn initial_delay(mut self, delay: Duration) -> Self {
        self.0.initial_delay = Some(time::to_proto(delay));
        self
    }

    /// Growth from one failure to the next. 1 to 100.
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.0.multiplier = Some(multiplier);
        self
    }

    /// Upper bound of the delay, before jitter. 0 s to 30 days.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.0.max_delay = Some(time::to_proto(delay));
        self
    }

    /// Part of the delay that is random, 0 to 1: 0.1 is ±10 %.
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.0.jitter = Some(jitter);
        self
    }

    /// As it goes over the wire.
    pub fn into_proto(self) -> proto::RetryPolicy {
        self.0
    }
}

impl From<proto::RetryPolicy> for RetryPolicy {
    fn from(policy: proto::RetryPolicy) -> Self {
        Self(policy)
    }
}
