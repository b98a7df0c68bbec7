//! The flags of what few jobs ask for.

use std::time::Duration;

use howdah_client::{
    NewJob,
    proto::{DependencyFailure, KeyPolicy, StagePayload},
};
use jiff::Timestamp;

/// Keys, expiry, limits, stages, dependencies.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Keys, order, stages, dependencies")]
pub(super) struct SpecialArgs {
    /// When another job has the key: keep it as it is, replace it, replace it if it is of a lower --key-version (newer),
    /// refuse this one (reject), or put it off to the start of this one (debounce)
    #[arg(long, value_name = "POLICY", requires = "key", value_parser = POLICIES.map(|(word, _)| word))]
    key_policy: Option<String>,
    /// The version that --key-policy newer compares
    #[arg(long, value_name = "N", requires = "key", allow_negative_numbers = true)]
    key_version: Option<i64>,
    /// Hold the key for so long from now, whether the job has finished or not
    #[arg(long, value_name = "DURATION", requires = "key", value_parser = humantime::parse_duration)]
    key_hold: Option<Duration>,
    /// With --key-policy debounce: start at most so long after the first enqueue
    #[arg(long, value_name = "DURATION", requires = "key", value_parser = humantime::parse_duration)]
    key_debounce_limit: Option<Duration>,
    /// Not at all when it has not begun so long after the enqueue
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    expire_after: Option<Duration>,
    /// Not at all when it has not begun by this time
    #[arg(long, value_name = "TIME", conflicts_with = "expire_after")]
    expire_at: Option<Timestamp>,
    /// What the task type's limits of keys count it by, such as a tenant
    #[arg(long, value_name = "KEY")]
    limit_key: Option<String>,
    /// Whose turn it is: the type's waiting jobs are shared evenly between fair keys
    #[arg(long, value_name = "KEY")]
    fair_key: Option<String>,
    /// A task type that the job goes on to when it is acked; may be repeated
    #[arg(long = "next-stage", value_name = "TYPE")]
    next_stages: Vec<String>,
    /// What the next stage gets as payload: the result of the stage before, or what was enqueued
    #[arg(long, value_name = "WHAT", requires = "next_stages", value_parser = ["result", "unchanged"])]
    stage_payload: Option<String>,
    /// Not before this job has succeeded; may be repeated
    #[arg(long, value_name = "ID")]
    after: Vec<i64>,
    /// When a job of --after does not succeed: cancel this one, run it nevertheless, or wait while the other is dead
    #[arg(long, value_name = "WHAT", requires = "after", value_parser = FAILURES.map(|(word, _)| word))]
    on_dependency_failure: Option<String>,
    /// The job that made this one, for people
    #[arg(long, value_name = "ID")]
    parent: Option<i64>,
}

const POLICIES: [(&str, KeyPolicy); 5] = [
    ("keep", KeyPolicy::Keep),
    ("replace", KeyPolicy::Replace),
    ("newer", KeyPolicy::ReplaceIfNewer),
    ("reject", KeyPolicy::Reject),
    ("debounce", KeyPolicy::Debounce),
];

const FAILURES: [(&str, DependencyFailure); 3] =
    [("cancel", DependencyFailure::Cancel), ("run", DependencyFailure::Run), ("wait", DependencyFailure::Wait)];

fn meant<T: Copy>(word: Option<&str>, all: &[(&str, T)]) -> Option<T> {
    all.iter().find(|(name, _)| Some(*name) == word).map(|(_, meant)| *meant)
}

impl SpecialArgs {
    /// The job with what was given.
    pub(super) fn apply(&self, mut job: NewJob) -> NewJob {
        if let Some(policy) = meant(self.key_policy.as_deref(), &POLICIES) {
            job = job.key_policy(policy);
        }
        if let Some(version) = self.key_version {
            job = job.key_version(version);
        }
        if let Some(hold) = self.key_hold {
            job = job.key_hold(hold);
        }
        if let Some(limit) = self.key_debounce_limit {
            job = job.key_debounce_limit(limit);
        }
        if let Some(after) = self.expire_after {
            job = job.expire_after(after);
        }
        if let Some(at) = self.expire_at {
            job = job.expire_at(at.into());
        }
        if let Some(key) = &self.limit_key {
            job = job.limit_key(key);
        }
        if let Some(key) = &self.fair_key {
            job = job.fair_key(key);
        }
        if self.stage_payload.as_deref() == Some("unchanged") {
            job = job.stage_payload(StagePayload::Unchanged);
        }
        if let Some(what) = meant(self.on_dependency_failure.as_deref(), &FAILURES) {
            job = job.on_dependency_failure(what);
        }
        if let Some(parent) = self.parent {
            job = job.parent_id(parent);
        }
        job.next_stages(&self.next_stages).after(self.after.iter().copied())
    }
}
