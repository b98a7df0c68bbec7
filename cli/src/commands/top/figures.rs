//! What was read from the broker, as it is shown.

use std::time::{Duration, Instant};

use howdah_client::proto::{DurationStats, JobState, Stats, TaskType, Worker};

use super::super::text;

/// What a look has found.
#[derive(Clone, Debug)]
pub enum Seen {
    /// The task types.
    Types(Types),
    /// The workers; whether there are more.
    Workers(Vec<Worker>, bool),
    /// Jobs of a type.
    Jobs(Box<Jobs>),
    /// A job in words; `None`: it does not exist, or its history has been dropped.
    Job(i64, Option<Vec<String>>),
}

/// Task types.
#[derive(Clone, Debug, Default)]
pub struct Types {
    pub(super) rows: Vec<TypeRow>,
    /// There are more.
    pub(super) has_more: bool,
    /// When the jobs were counted.
    pub(super) counted: Option<Instant>,
    /// Why there are no rates.
    pub(super) no_flow: Option<String>,
}

/// A task type.
#[derive(Clone, Debug, Default)]
pub(super) struct TypeRow {
    pub(super) name: String,
    pub(super) ready: i64,
    pub(super) running: i64,
    pub(super) scheduled: i64,
    pub(super) waiting: i64,
    pub(super) dead: i64,
    pub(super) oldest: Option<Duration>,
    pub(super) is_paused: bool,
    /// `None`: unknown.
    pub(super) flow: Option<Flow>,
}

impl TypeRow {
    pub(super) fn of(task_type: &TaskType) -> Self {
        let counts = task_type.counts.unwrap_or_default();
        Self {
            name: task_type.name.clone(),
            ready: counts.ready,
            running: counts.leased,
            scheduled: counts.scheduled,
            waiting: counts.waiting,
            dead: counts.dead,
            oldest: text::duration(task_type.oldest_ready_age.as_ref()),
            is_paused: task_type.settings.as_ref().is_some_and(|settings| settings.paused),
            flow: None,
        }
    }
}

/// What happened to the jobs of a type in the last minutes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Jobs a second.
    pub(super) enqueued: f64,
    pub(super) succeeded: f64,
    pub(super) failed: f64,
    pub(super) wait: Percentiles,
    pub(super) run: Percentiles,
}

impl Flow {
    pub(super) fn of(stats: &Stats, seconds: f64) -> Self {
        let rate = |count: i64| count as f64 / seconds;
        Self {
            enqueued: rate(stats.enqueued_count),
            succeeded: rate(stats.succeeded_count),
            failed: rate(stats.failed_count),
            wait: Percentiles::of(stats.wait.as_ref()),
            run: Percentiles::of(stats.run.as_ref()),
        }
    }
}

/// How long something took; `None`: it did not happen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Percentiles {
    pub(super) p50: Option<Duration>,
    pub(super) p99: Option<Duration>,
}

impl Percentiles {
    fn of(stats: Option<&DurationStats>) -> Self {
        let time = |time: fn(&DurationStats) -> &Option<prost_types::Duration>| {
            stats.and_then(|stats| text::duration(time(stats).as_ref()))
        };
        Self { p50: time(|stats| &stats.p50), p99: time(|stats| &stats.p99) }
    }
}

/// Jobs of a type.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    /// The type, as it was counted last.
    pub(super) row: TypeRow,
    /// Only jobs in this state.
    pub(super) state: JobState,
    /// Its settings in words.
    pub(super) settings: String,
    pub(super) rows: Vec<JobRow>,
    pub(super) has_more: bool,
    /// Attempts that succeeded in each of the last minutes, the oldest first.
    pub(super) minutes: Vec<u64>,
}

/// A job.
#[derive(Clone, Debug, Default)]
pub(super) struct JobRow {
    pub(super) id: i64,
    pub(super) state: &'static str,
    pub(super) priority: i32,
    pub(super) attempts: String,
    pub(super) created: String,
    pub(super) next: String,
    /// Its key and its last error.
    pub(super) remark: String,
}
