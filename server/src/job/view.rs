//! A job and a task type as operators see them.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use super::{CoordinationView, JobOptions, JobState, PRIORITY_STEP, RetryOverride, TaskTypeName, TypeLimits};

/// A job, read for an operator.
#[derive(Clone, Debug)]
pub struct JobView {
    /// Its id.
    pub id: i64,
    /// Its task type.
    pub task_type: String,
    /// Its state.
    pub state: JobState,
    /// Its priority; lower runs first.
    pub priority: i16,
    /// Attempts started so far.
    pub attempt: i16,
    /// Attempts allowed.
    pub max_attempts: i16,
    /// Its key.
    pub key: Option<String>,
    /// When it was enqueued.
    pub created: SystemTime,
    /// When it may start, if scheduled.
    pub run_at: Option<SystemTime>,
    /// When its current or last attempt started.
    pub leased_at: Option<SystemTime>,
    /// When it finished or died.
    pub finished: Option<SystemTime>,
    /// When its attempt times out.
    pub deadline: Option<SystemTime>,
    /// Headers, as enqueued.
    pub headers: HashMap<String, String>,
    /// Its failed attempts, the oldest first.
    pub failures: Vec<Failure>,
    /// Payload, as enqueued; `None` if it was not requested.
    pub payload: Option<Bytes>,
    /// The result that the worker returned.
    pub result: Option<Bytes>,
    /// Its task type before it went to its fallback.
    pub original_task_type: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// The broker whose worker holds it; not of jobs that are waited for.
    pub broker: Option<String>,
    /// The worker that holds it, if that is known; not in lists.
    pub worker: Option<String>,
    /// Its options; not in lists.
    pub options: Option<Box<JobOptions>>,
    /// Its stages and dependencies; not in lists.
    pub coordination: Option<Box<CoordinationView>>,
}

impl JobView {
    /// A job of which only the id and the final state are known.
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
    /// Their type.
    pub task_type: String,
    /// The name of the group: the error without its numbers, ids and quoted texts.
    pub error_group: String,
    /// Number of dead jobs.
    pub dead: i64,
    /// Number of jobs that wait for their next attempt.
    pub backing_off: i64,
    /// The earliest of their last failures.
    pub first: Option<SystemTime>,
    /// The latest of their last failures.
    pub last: Option<SystemTime>,
    /// The id of one of the jobs.
    pub example_id: i64,
    /// The beginning of that job's last error.
    pub example_error: String,
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The number of the attempt, from 1.
    pub attempt: i16,
    /// The worker's error, or why the broker ended the attempt.
    pub error: String,
    /// When the attempt started.
    pub started: Option<SystemTime>,
    /// When it failed.
    pub failed: Option<SystemTime>,
}

/// One page of a type's jobs.
#[derive(Clone, Debug, Default)]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Where the next page starts; `None` if this is the last page.
    pub next: Option<PagePosition>,
    /// How the jobs with the most attempts were found; of other orders nothing.
    pub look: Look,
}

/// A look for the jobs with the most attempts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Whether not every job was looked at.
    pub partial: bool,
    /// How many were.
    pub looked_at: i64,
    /// Whether it found more than are returned.
    pub has_more: bool,
}

/// Where a page of jobs starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePosition {
    /// The state being listed.
    pub state: JobState,
    /// Rank of the last job seen; for ready jobs only.
    pub rank: i64,
    /// Id of the last job seen.
    pub id: i64,
}

/// Settings of a task type; `None` means the broker's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeSettings {
    /// Attempts at most.
    pub max_attempts: Option<i16>,
    /// When to retry.
    pub retry: RetryOverride,
    /// Which succeeded jobs are kept.
    pub history: Option<HistoryMode>,
    /// The task type that gets jobs whose attempts are used up.
    pub fallback: Option<TaskTypeName>,
    /// How many jobs may run, and how fast they may start.
    pub limits: TypeLimits,
    /// How much one priority counts in rank, µs.
    pub priority_step_us: Option<i64>,
    /// Timeout of an attempt, for jobs without one.
    pub timeout: Option<Duration>,
    /// Whether no job of the type starts.
    pub paused: bool,
    /// Bytes of a payload at most.
    pub max_payload_bytes: Option<i32>,
    /// Jobs that may wait for a worker.
    pub max_backlog: Option<i64>,
    /// Days that finished jobs are kept.
    pub history_days: Option<i16>,
}

impl TypeSettings {
    /// Highest bound of a backlog. So many jobs are counted now and then.
    pub const MAX_BACKLOG: i64 = 10_000_000;
    /// Highest number of days that finished jobs are kept.
    pub const MAX_HISTORY_DAYS: i64 = 3_650;

    /// How much one priority counts in rank, µs.
    pub fn step_us(&self) -> i64 {
        self.priority_step_us.unwrap_or(PRIORITY_STEP)
    }
}

/// Which succeeded jobs of a type go to history. Jobs that ended otherwise always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryMode {
    /// All.
    Full,
    /// Jobs with a failed attempt.
    Failures,
    /// Jobs with a result or a failed attempt.
    WithoutEmpty,
    /// No jobs. A settle that is repeated because its answer was lost is answered with `LEASE_LOST`.
    None,
}

impl HistoryMode {
    /// The name that is stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Failures => "failures",
            Self::None => "none",
            Self::WithoutEmpty => "without_empty",
        }
    }

    /// Reads the stored name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Full, Self::Failures, Self::None, Self::WithoutEmpty].into_iter().find(|mode| mode.name() == name)
    }
}

/// A task type and its jobs.
#[derive(Clone, Debug)]
pub struct TypeView {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: TypeSettings,
    /// Number of jobs that are ready, leased, scheduled, waiting and dead.
    pub counts: [i64; 5],
    /// How long its first ready job has been ready; `None` if no job is ready.
    pub oldest_ready: Option<Duration>,
    /// The time until the first scheduled job is due.
    pub next_due: Option<Duration>,
    /// When a program last called for its jobs without a stream, to some 20 s.
    pub last_pull: Option<SystemTime>,
}
