//! A job and a task type as operators see them.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use super::{CoordinationView, JobOptions, JobState, PRIORITY_STEP, RetryOverride, TaskTypeName, TypeLimits};

/// A job, read for a person.
#[derive(Clone, Debug)]
pub struct JobView {
    /// Its number.
    pub id: i64,
    /// What workers subscribe by.
    pub task_type: String,
    /// The table it is in.
    pub state: JobState,
    /// Lower goes first.
    pub priority: i16,
    /// Attempts begun.
    pub attempt: i16,
    /// Attempts allowed.
    pub max_attempts: i16,
    /// Its key.
    pub key: Option<String>,
    /// When it was enqueued.
    pub created: SystemTime,
    /// When it may start, if scheduled.
    pub run_at: Option<SystemTime>,
    /// When its current or last attempt began.
    pub leased_at: Option<SystemTime>,
    /// When it finished or died.
    pub finished: Option<SystemTime>,
    /// When its attempt is over.
    pub deadline: Option<SystemTime>,
    /// What was enqueued.
    pub headers: HashMap<String, String>,
    /// What went wrong, the oldest first.
    pub failures: Vec<Failure>,
    /// What was enqueued; `None` when not asked for.
    pub payload: Option<Bytes>,
    /// What the worker returned.
    pub result: Option<Bytes>,
    /// The type that it had before it went to its fallback.
    pub original_task_type: Option<String>,
    /// Its options; not in lists.
    pub options: Option<Box<JobOptions>>,
    /// Its stages and dependencies; not in lists.
    pub coordination: Option<Box<CoordinationView>>,
}

impl JobView {
    /// A job of which nothing is kept but that it ended so.
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
            options: None,
            coordination: None,
        }
    }
}

/// Jobs of a type whose last error is the same but for numbers, ids and quoted texts.
#[derive(Clone, Debug)]
pub struct ErrorGroup {
    /// Their type.
    pub task_type: String,
    /// What the errors have in common.
    pub error_group: String,
    /// How many are dead.
    pub dead: i64,
    /// How many are to be tried again.
    pub backing_off: i64,
    /// When the first of them failed the last time.
    pub first: Option<SystemTime>,
    /// When the last of them did.
    pub last: Option<SystemTime>,
    /// One of them.
    pub example_id: i64,
    /// Its last error, its beginning.
    pub example_error: String,
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Which, from 1.
    pub attempt: i16,
    /// What the worker said, or why the broker ended it.
    pub error: String,
    /// When the attempt began.
    pub started: Option<SystemTime>,
    /// When it failed.
    pub failed: Option<SystemTime>,
}

/// One page of a type's jobs.
#[derive(Clone, Debug, Default)]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<PagePosition>,
}

/// Where a page of jobs begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePosition {
    /// The state being listed.
    pub state: JobState,
    /// Rank of the last job seen; for ready jobs only.
    pub rank: i64,
    /// Id of the last job seen.
    pub id: i64,
}

/// Settings of a task type; what is `None` is the broker's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeSettings {
    /// Deliveries at most.
    pub max_attempts: Option<i16>,
    /// When to try again.
    pub retry: RetryOverride,
    /// Which succeeded jobs are kept.
    pub history: Option<HistoryMode>,
    /// Where jobs go that are given up.
    pub fallback: Option<TaskTypeName>,
    /// How many may run.
    pub limits: TypeLimits,
    /// What one priority weighs in rank, µs.
    pub priority_step_us: Option<i64>,
    /// Of an attempt of jobs that say none.
    pub timeout: Option<Duration>,
    /// Jobs stay where they are.
    pub paused: bool,
    /// Bytes of a payload at most.
    pub max_payload_bytes: Option<i32>,
    /// Jobs that may wait for a worker.
    pub max_backlog: Option<i64>,
    /// Days that finished jobs are kept.
    pub history_days: Option<i16>,
}

impl TypeSettings {
    /// Most jobs that a backlog may be bounded to: as many are counted now and then.
    pub const MAX_BACKLOG: i64 = 10_000_000;
    /// Most days that finished jobs are kept.
    pub const MAX_HISTORY_DAYS: i64 = 3_650;

    /// What one priority weighs in rank, µs.
    pub fn step_us(&self) -> i64 {
        self.priority_step_us.unwrap_or(PRIORITY_STEP)
    }
}

/// Which succeeded jobs of a type go to history. Jobs that ended otherwise always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryMode {
    /// All.
    Full,
    /// Those of which an attempt had failed.
    Failures,
    /// Those with a result, and those of which an attempt had failed.
    WithoutEmpty,
    /// None. A settle that is repeated because its answer was lost is answered `LEASE_LOST`.
    None,
}

impl HistoryMode {
    /// As stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Failures => "failures",
            Self::None => "none",
            Self::WithoutEmpty => "without_empty",
        }
    }

    /// From what is stored.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Full, Self::Failures, Self::None, Self::WithoutEmpty].into_iter().find(|mode| mode.name() == name)
    }
}

/// A task type and its jobs.
#[derive(Clone, Debug)]
pub struct TypeView {
    /// Its name.
    pub name: String,
    /// What was set for it.
    pub settings: TypeSettings,
    /// Jobs ready, leased, scheduled, waiting, dead.
    pub counts: [i64; 5],
    /// How long its first ready job has been ready.
    pub oldest_ready: Option<Duration>,
}
