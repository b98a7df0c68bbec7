//! Explanation of why a job does not run, in the same words for all clients.

use std::time::{Duration, SystemTime};

use howdah_proto::v1::ReasonKind;

use super::JobState;

/// Why a job does not run, or how it ended.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The job.
    pub id: i64,
    /// Task type.
    pub task_type: String,
    /// State.
    pub state: JobState,
    /// Reasons that block the job, in order: the first one must be removed first.
    pub reasons: Vec<Reason>,
    /// Number of jobs before this job in the queue, counted up to a bound. `None` unless the job is ready or waits for
    /// a limit key.
    pub before: Option<Before>,
    /// Expected time until the job starts. `None` if it is unknown, or the job is neither ready nor scheduled.
    pub expected_in: Option<Duration>,
    /// Settled attempts per minute of the job's task type, averaged over the last minutes. 0 unless the job is ready.
    pub settled_per_minute: f64,
}

/// Number of jobs before another one in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Number of jobs.
    pub jobs: i64,
    /// Whether the queue has more jobs before this job than were counted.
    pub has_more: bool,
}

/// A reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reason {
    /// Machine-readable reason.
    pub kind: ReasonKind,
    /// Human-readable reason.
    pub text: String,
    /// Sentence that says which change lets the job run; empty if nothing can or needs to be done.
    pub remedy: String,
    /// Time at which the reason began.
    pub since: Option<SystemTime>,
    /// Time at which the reason ends.
    pub until: Option<SystemTime>,
    /// Other jobs that block the explained job.
    pub jobs: Vec<RelatedJob>,
    /// The limit key or fair key; empty for other reasons.
    pub key: String,
    /// Value of the limit; 0 for reasons without a limit.
    pub limit: f64,
    /// Current usage of the limit; 0 for reasons without a limit.
    pub used: i64,
    /// Broker of the worker that holds the job; empty for jobs that are not leased.
    pub broker: String,
    /// Worker that holds the job, if known; empty for jobs that are not leased.
    pub worker: String,
    /// Error of the last attempt; empty if the reason is not a failure.
    pub error: String,
}

/// Another job that a reason names, such as a dependency or the holder of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelatedJob {
    /// Id.
    pub id: i64,
    /// Task type and state; `None` if the job does not exist any more, or the caller may not see it.
    pub known: Option<(String, JobState)>,
}
