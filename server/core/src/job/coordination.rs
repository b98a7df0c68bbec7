//! Options that coordinate jobs: keys, stages and dependencies. Jobs with such options are enqueued by a separate statement. They
//! are marked `coordinated` in their options if their end affects other jobs or callers.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::JobState;

/// Policy for an enqueue when another job holds the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPolicy {
    /// Keep the other job unchanged.
    #[default]
    Keep,
    /// Replace the other job; if it is running, run this job after it.
    Replace,
    /// Like `Replace`, but only if the version is higher.
    ReplaceIfNewer,
    /// Reject the request.
    Reject,
    /// Like `Replace`, and start the delay of the job anew.
    Debounce,
}

/// Policy for a holder of a key whose attempt fails while another job waits for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderFailure {
    /// The holder of the key ends, and the other job runs.
    Supersede,
    /// The holder of the key is retried, and the other job continues to wait.
    Retry,
}

/// Payload of a job's next stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StagePayload {
    /// The result of the previous stage.
    Result,
    /// The payload with which the job was enqueued.
    Unchanged,
}

/// Policy for a job when one of its dependencies does not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DependencyFailure {
    /// Cancel the job.
    #[default]
    Cancel,
    /// Run the job.
    Run,
    /// Wait while the dependency is dead.
    Wait,
}

/// A dependency of a job, and its result.
#[derive(Clone, Debug)]
pub struct DependencyResult {
    /// Id of the dependency.
    pub id: i64,
    /// State of the dependency; `None` if the database does not contain it.
    pub state: Option<JobState>,
    /// Result of the dependency; empty if it has none.
    pub result: Bytes,
    /// Whether the result was left out because of its size.
    pub truncated: bool,
}

/// Result of `howdah.coordination_of`: dependencies, stages and fallback of a job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoordinationView {
    /// Task types of the remaining stages.
    pub next_stages: Vec<String>,
    /// Completed stages.
    pub completed_stages: Vec<CompletedStage>,
    /// Ids of the first 100 dependencies, finished or not.
    pub after: Vec<i64>,
    /// Task type that the job itself names as its fallback; `None` if it names none, or after the job has moved to it.
    pub fallback: Option<String>,
}

/// A completed stage.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CompletedStage {
    /// The task type.
    pub task_type: String,
    /// Number of attempts of the stage.
    pub attempt: i16,
    /// Start of the stage's last attempt.
    pub started: Option<jiff::Timestamp>,
    /// Time when a worker acked the stage.
    pub finished: Option<jiff::Timestamp>,
}
