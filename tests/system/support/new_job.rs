//! Every option of a job, once, for both a `v1::NewJob` and an `Enqueue`.
//!
//! The message has getters named `key_policy`, `key_version`, `stage_payload` and `on_dependency_failure`, so the corresponding
//! options have other names.

use std::time::Duration;

use bytes::Bytes;
use howdah_proto::v1::{
    DependencyFailure, KeyPolicy, NewJob, RetryPolicy, RetryPolicyKind, StagePayload,
    new_job::{Expiry, Start},
};

use super::wire;

/// Returns a job of a task type with a payload.
pub fn new_job(task_type: &str, payload: impl Into<Vec<u8>>) -> NewJob {
    NewJob { task_type: task_type.into(), payload: payload.into().into(), ..NewJob::default() }
}

/// A type that converts to a job: a `NewJob`, or the name of a task type for a job without a payload.
pub trait IntoNewJob {
    fn into_new_job(self) -> NewJob;
}

impl IntoNewJob for NewJob {
    fn into_new_job(self) -> NewJob {
        self
    }
}

impl IntoNewJob for &str {
    fn into_new_job(self) -> NewJob {
        new_job(self, "")
    }
}

/// Builder methods for the options of a job.
#[allow(dead_code, reason = "every option has a method, even if no test uses it")]
pub trait JobOptions: Sized {
    /// Applies any change to the message.
    fn with(self, change: impl FnOnce(&mut NewJob)) -> Self;

    fn payload(self, payload: impl Into<Bytes>) -> Self {
        self.with(|job| job.payload = payload.into())
    }

    fn header(self, name: &str, value: &str) -> Self {
        self.with(|job| drop(job.headers.insert(name.into(), value.into())))
    }

    fn tags(self, tags: &[&str]) -> Self {
        self.with(|job| job.tags = owned(tags))
    }

    fn trace(self, traceparent: &str) -> Self {
        self.with(|job| job.traceparent = traceparent.into())
    }

    // Time and order.

    /// Sets the priority. Jobs with a lower number run first.
    fn priority(self, priority: i32) -> Self {
        self.with(|job| job.priority = priority)
    }

    fn fair_key(self, key: &str) -> Self {
        self.with(|job| job.fair_key = key.into())
    }

    fn delay(self, delay: Duration) -> Self {
        self.with(|job| job.start = Some(Start::Delay(wire(delay))))
    }

    fn run_at(self, time: prost_types::Timestamp) -> Self {
        self.with(|job| job.start = Some(Start::RunAt(time)))
    }

    fn expire_after(self, time: Duration) -> Self {
        self.with(|job| job.expiry = Some(Expiry::ExpireAfter(wire(time))))
    }

    fn expire_at(self, time: prost_types::Timestamp) -> Self {
        self.with(|job| job.expiry = Some(Expiry::ExpireAt(time)))
    }

    // Attempts and retries.

    fn max_attempts(self, attempts: u32) -> Self {
        self.with(|job| job.max_attempts = attempts)
    }

    fn timeout(self, timeout: Duration) -> Self {
        self.with(|job| job.timeout = Some(wire(timeout)))
    }

    fn retry_policy(self, policy: RetryPolicy) -> Self {
        self.with(|job| job.retry_policy = Some(policy))
    }

    /// Makes the job retry with the same delay after each failure.
    fn retry_after_each(self, delay: Duration) -> Self {
        self.retry_policy(RetryPolicy {
            kind: RetryPolicyKind::Fixed as i32,
            initial_delay: Some(wire(delay)),
            jitter: Some(0.0),
            ..RetryPolicy::default()
        })
    }

    fn fallback(self, task_type: &str) -> Self {
        self.with(|job| job.fallback = task_type.into())
    }

    // Keys.

    fn key(self, key: &str) -> Self {
        self.with(|job| job.key = key.into())
    }

    /// Sets `key_policy`.
    fn policy(self, policy: KeyPolicy) -> Self {
        self.with(|job| job.key_policy = policy as i32)
    }

    fn keep(self) -> Self {
        self.policy(KeyPolicy::Keep)
    }

    fn replace(self) -> Self {
        self.policy(KeyPolicy::Replace)
    }

    fn reject(self) -> Self {
        self.policy(KeyPolicy::Reject)
    }

    fn debounce(self) -> Self {
        self.policy(KeyPolicy::Debounce)
    }

    fn replace_if_newer(self, version: i64) -> Self {
        self.policy(KeyPolicy::ReplaceIfNewer).with(|job| job.key_version = Some(version))
    }

    fn key_hold(self, time: Duration) -> Self {
        self.with(|job| job.key_hold = Some(wire(time)))
    }

    fn key_debounce_limit(self, time: Duration) -> Self {
        self.with(|job| job.key_debounce_limit = Some(wire(time)))
    }

    // Limits, stages, dependencies.

    fn limit_key(self, key: &str) -> Self {
        self.with(|job| job.limit_key = key.into())
    }

    fn next_stages(self, task_types: &[&str]) -> Self {
        self.with(|job| job.next_stages = owned(task_types))
    }

    /// Sets `stage_payload`.
    fn stages_get(self, payload: StagePayload) -> Self {
        self.with(|job| job.stage_payload = payload as i32)
    }

    fn after(self, ids: &[i64]) -> Self {
        self.with(|job| job.after = ids.to_vec())
    }

    fn local_name(self, name: &str) -> Self {
        self.with(|job| job.local_name = name.into())
    }

    fn after_local(self, names: &[&str]) -> Self {
        self.with(|job| job.after_local = owned(names))
    }

    /// Sets `on_dependency_failure`.
    fn if_dependency_fails(self, then: DependencyFailure) -> Self {
        self.with(|job| job.on_dependency_failure = then as i32)
    }

    fn parent(self, id: i64) -> Self {
        self.with(|job| job.parent_id = id)
    }
}

impl JobOptions for NewJob {
    fn with(mut self, change: impl FnOnce(&mut NewJob)) -> Self {
        change(&mut self);
        self
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
