//! Options that coordinate jobs: keys, stages, dependencies. Such jobs take a statement of their own on their way in, and
//! are marked `coordinated` in their options if something must be done when they end.

use serde::{Deserialize, Serialize};

/// What an enqueue does when another job has the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPolicy {
    /// The other one stays as it is.
    #[default]
    Keep,
    /// The other one is changed, or this one runs after it.
    Replace,
    /// As replace, if the version is higher.
    ReplaceIfNewer,
    /// The request fails.
    Reject,
    /// As replace, and put off.
    Debounce,
}

/// What the next stage of a job gets as its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StagePayload {
    /// The result of the stage before it.
    Result,
    /// What was enqueued.
    Unchanged,
}

/// What becomes of a job when one that it runs after does not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DependencyFailure {
    /// It is cancelled.
    #[default]
    Cancel,
    /// It runs.
    Run,
    /// It waits while the other is dead.
    Wait,
}

/// What `howdah.coordination_of` says of a job beside its options.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoordinationView {
    /// Types that it goes on to.
    pub next_stages: Vec<String>,
    /// Stages that it has been through.
    pub stages_done: Vec<StageDone>,
    /// Jobs that it waits for.
    pub after: Vec<i64>,
}

/// A stage that a job has been through.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StageDone {
    /// Its type.
    pub task_type: String,
    /// Attempts that it took.
    pub attempt: i16,
    /// When the last of them began.
    pub started: Option<jiff::Timestamp>,
    /// When it was acked.
    pub finished: Option<jiff::Timestamp>,
}
