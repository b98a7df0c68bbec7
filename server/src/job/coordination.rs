//! Options that coordinate jobs: keys, stages, dependencies. Such jobs are enqueued by a statement of their own. They are
//! marked `coordinated` in their options if their end has consequences for other jobs or callers.

use serde::{Deserialize, Serialize};

/// What an enqueue does when another job has the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPolicy {
    /// The other job stays unchanged.
    #[default]
    Keep,
    /// The other job is changed; if it is running, this job runs after it.
    Replace,
    /// Like replace, if the version is higher.
    ReplaceIfNewer,
    /// The request fails.
    Reject,
    /// Like replace, and the start is delayed again.
    Debounce,
}

/// What happens to the holder of a key when its attempt fails while another job with the key waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderFailure {
    /// It ends, and the other job runs.
    Supersede,
    /// It is retried, and the other job goes on waiting.
    Retry,
}

/// What the next stage of a job gets as its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StagePayload {
    /// The result of the previous stage.
    Result,
    /// The payload that was enqueued.
    Unchanged,
}

/// What happens to a job when a job that it depends on does not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DependencyFailure {
    /// It is cancelled.
    #[default]
    Cancel,
    /// It runs.
    Run,
    /// It waits while the other job is dead.
    Wait,
}

/// The result of `howdah.coordination_of`: how a job depends on others.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoordinationView {
    /// Task types of the stages to come.
    pub next_stages: Vec<String>,
    /// Stages that the job has completed.
    pub completed_stages: Vec<CompletedStage>,
    /// Ids of the jobs that it waits for.
    pub after: Vec<i64>,
}

/// A stage that a job has completed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CompletedStage {
    /// The task type.
    pub task_type: String,
    /// Attempts that the stage took.
    pub attempt: i16,
    /// When its last attempt started.
    pub started: Option<jiff::Timestamp>,
    /// When the stage was acked.
    pub finished: Option<jiff::Timestamp>,
}
