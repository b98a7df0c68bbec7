//! Jobs and task types as operators see them.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Braked, CoordinationView, JobOptions, JobState, PRIORITY_STEP, RetryOverride, TaskTypeName, TypeLimits};

/// A job as operators see it.
#[derive(Clone, Debug)]
pub struct JobView {
    /// Id.
    pub id: i64,
    /// Task type.
    pub task_type: String,
    /// State.
    pub state: JobState,
    /// Priority; lower runs first.
    pub priority: i16,
    /// Number of started attempts.
    pub attempt: i16,
    /// Maximum number of attempts.
    pub max_attempts: i16,
    /// Key.
    pub key: Option<String>,
    /// Time of the enqueue.
    pub created: SystemTime,
    /// Start time of a scheduled job.
    pub run_at: Option<SystemTime>,
    /// Start of the current or last attempt; `None` before the first one.
    pub leased_at: Option<SystemTime>,
    /// Time at which the job finished or died; `None` for other states.
    pub finished: Option<SystemTime>,
    /// Time at which the current attempt times out; `None` without a timeout or an attempt.
    pub deadline: Option<SystemTime>,
    /// Headers from the enqueue.
    pub headers: HashMap<String, String>,
    /// Failed attempts, oldest first.
    pub failures: Vec<Failure>,
    /// Payload from the enqueue; `None` if it was not requested.
    pub payload: Option<Bytes>,
    /// Result from the worker.
    pub result: Option<Bytes>,
    /// Task type before the job moved to its fallback; `None` if it has not moved.
    pub original_task_type: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Broker whose worker holds the job; unset in answers to `WaitJobs`.
    pub broker: Option<String>,
    /// Worker that holds the job, if known; unset in lists.
    pub worker: Option<String>,
    /// Options; unset in lists.
    pub options: Option<Box<JobOptions>>,
    /// Stages and dependencies; unset in lists.
    pub coordination: Option<Box<CoordinationView>>,
}

impl JobView {
    /// Returns a view of an ended job whose row is deleted: only its id and its final state are known.
    pub fn forgotten(id: i64, state: JobState) -> Self {
        Self {
            id,
            task_type: String::new(),
            state,
            priority: 0,
            attempt: 0,
            max_attempts: 0,
            key: None,
            created: SystemTime::UNIX_EPOCH,
            run_at: None,
            leased_at: None,
            finished: None,
            deadline: None,
            headers: HashMap::new(),
            failures: Vec::new(),
            payload: None,
            result: None,
            original_task_type: None,
            tags: Vec::new(),
            broker: None,
            worker: None,
            options: None,
            coordination: None,
        }
    }
}

/// Jobs of a type whose last errors differ only in numbers, ids and quoted texts.
#[derive(Clone, Debug)]
pub struct ErrorGroup {
    /// Type of the jobs.
    pub task_type: String,
    /// Name of the group: the error without its numbers, ids and quoted texts.
    pub error_group: String,
    /// Number of dead jobs.
    pub dead: i64,
    /// Number of jobs that wait for their next attempt.
    pub backing_off: i64,
    /// Time of the earliest last failure of a job in the group.
    pub first: Option<SystemTime>,
    /// Time of the most recent failure of a job in the group.
    pub last: Option<SystemTime>,
    /// Id of a job in the group, as an example.
    pub example_id: i64,
    /// Beginning of the last error of the example job.
    pub example_error: String,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The number of the attempt, from 1.
    pub attempt: i16,
    /// The worker's error, or the broker's reason for ending the attempt.
    pub error: String,
    /// Start of the attempt.
    pub started: Option<SystemTime>,
    /// Time of the failure.
    pub failed: Option<SystemTime>,
    /// The worker's details, such as a stack trace; empty if unknown.
    pub details: String,
    /// Place in the worker's program where the error arose; empty if unknown.
    pub place: String,
}

/// A page of a type's jobs.
#[derive(Clone, Debug, Default)]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Start of the next page; `None` on the last page.
    pub next: Option<PagePosition>,
    /// Extent of the scan for the jobs with the most attempts; empty for other list orders.
    pub look: Look,
}

/// Extent of a scan for the jobs with the most attempts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Whether the scan is incomplete.
    pub partial: bool,
    /// Number of scanned jobs.
    pub scanned_count: i64,
    /// Whether the scan found more jobs than it returned.
    pub has_more: bool,
}

/// Start of a page of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePosition {
    /// State of the listed jobs.
    pub state: JobState,
    /// Rank of the last job of the previous page; used for ready jobs only.
    pub rank: i64,
    /// Id of the last job of the previous page.
    pub id: i64,
}

impl PagePosition {
    /// Returns the position at which a scan of the jobs in this state starts. Finished jobs come newest first, from id 0.
    pub const fn first(state: JobState) -> Self {
        Self { state, rank: i64::MIN, id: if state.is_finished() { 0 } else { i64::MIN } }
    }

    /// Returns the first position of the state that follows `state` in the order of a scan. `None` after the last state.
    pub fn after(state: JobState, order: &[JobState]) -> Option<Self> {
        let at = order.iter().position(|s| *s == state)?;
        order.get(at + 1).copied().map(Self::first)
    }
}

/// Settings of a task type; `None` means the broker's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeSettings {
    /// Maximum number of attempts.
    pub max_attempts: Option<i16>,
    /// Retry policy.
    pub retry: RetryOverride,
    /// Which succeeded jobs are kept in history.
    pub history: Option<HistoryMode>,
    /// Task type that gets jobs whose attempts are used up.
    pub fallback: Option<TaskTypeName>,
    /// Concurrency and rate limits.
    pub limits: TypeLimits,
    /// Priority step: µs that one unit of priority adds to the rank.
    pub priority_step_us: Option<i64>,
    /// Timeout of an attempt, for jobs that set none.
    pub timeout: Option<Duration>,
    /// Whether the type is paused, so that none of its jobs start.
    pub paused: bool,
    /// Maximum size of a payload, in bytes.
    pub max_payload_bytes: Option<i32>,
    /// Maximum backlog: number of jobs that may wait for a worker.
    pub max_backlog: Option<i64>,
    /// Retention of finished jobs, in days.
    pub history_days: Option<i16>,
    /// Number of days after which dead jobs are discarded.
    pub dead_days: Option<i16>,
}

impl TypeSettings {
    /// Highest value of the maximum backlog. Up to this many jobs are counted regularly.
    pub const MAX_BACKLOG: i64 = 10_000_000;
    /// Maximum retention of finished and of dead jobs, in days.
    pub const MAX_HISTORY_DAYS: i64 = 3_650;

    /// Priority step in µs, or its default.
    pub fn step_us(&self) -> i64 {
        self.priority_step_us.unwrap_or(PRIORITY_STEP)
    }
}

/// Which succeeded jobs go to history, of a type or as an option of a job. Jobs with other outcomes always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryMode {
    /// All jobs.
    Full,
    /// Only jobs with a failed attempt.
    Failures,
    /// Only jobs with a result or a failed attempt.
    WithoutEmpty,
    /// No jobs. A worker that repeats a settle because its answer was lost then gets `LEASE_LOST`.
    None,
}

impl HistoryMode {
    /// Stored name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Failures => "failures",
            Self::None => "none",
            Self::WithoutEmpty => "without_empty",
        }
    }

    /// Parses the stored name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Full, Self::Failures, Self::None, Self::WithoutEmpty].into_iter().find(|mode| mode.name() == name)
    }
}

/// A task type and its job counts.
#[derive(Clone, Debug)]
pub struct TypeView {
    /// Name.
    pub name: String,
    /// Settings.
    pub settings: TypeSettings,
    /// Numbers of ready, leased, scheduled, waiting and dead jobs.
    pub counts: [i64; 5],
    /// Age of the type's oldest ready job; `None` without ready jobs.
    pub oldest_ready: Option<Duration>,
    /// Time until the type's next scheduled job is due.
    pub next_due: Option<Duration>,
    /// State of the brake; `None` if the type is not braked.
    pub braked: Option<Braked>,
    /// Time of the last `PullJobs` call for the type, with a precision of 20 s.
    pub last_pull: Option<SystemTime>,
}
