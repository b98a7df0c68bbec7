//! Figures read from the broker, in the form in which they are shown.

use std::time::{Duration, Instant};

use howdah_client::proto::{DurationStats, JobState, Stats, TaskType, Worker};

use super::super::text;

/// Figures of a view, as one read returns them.
#[derive(Clone, Debug)]
pub enum Figures {
    /// Figures of the view of task types.
    Types(Types),
    /// Workers, and whether the list is incomplete.
    Workers(Vec<Worker>, bool),
    /// Figures of the view of one task type and its jobs.
    Jobs(Box<Jobs>),
    /// Description of a job; `None` if it does not exist, or its history was dropped.
    Job(i64, Option<Vec<String>>),
}

/// Task types of one read.
#[derive(Clone, Debug, Default)]
pub struct Types {
    pub(super) rows: Vec<TypeRow>,
    /// Whether the broker has more task types than were read.
    pub(super) has_more: bool,
    /// Time of the broker's last count.
    pub(super) counted: Option<Instant>,
    /// Reason why the rates are missing; `None` if they are shown.
    pub(super) no_flow: Option<String>,
}

/// Row of a task type.
#[derive(Clone, Debug, Default)]
pub(super) struct TypeRow {
    pub(super) name: String,
    pub(super) ready: i64,
    pub(super) leased: i64,
    pub(super) scheduled: i64,
    pub(super) waiting: i64,
    pub(super) dead: i64,
    pub(super) oldest: Option<Duration>,
    pub(super) is_paused: bool,
    /// Throughput and percentiles of the type; `None` if unknown.
    pub(super) flow: Option<Flow>,
}

impl TypeRow {
    pub(super) fn new(task_type: &TaskType) -> Self {
        let counts = task_type.counts.unwrap_or_default();
        Self {
            name: task_type.name.clone(),
            ready: counts.ready,
            leased: counts.leased,
            scheduled: counts.scheduled,
            waiting: counts.waiting,
            dead: counts.dead,
            oldest: text::duration(task_type.oldest_ready_age.as_ref()),
            is_paused: task_type.settings.as_ref().is_some_and(|settings| settings.paused),
            flow: None,
        }
    }
}

/// Throughput, wait time and run time of a task type in the last minutes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Jobs enqueued per second.
    pub(super) enqueued: f64,
    pub(super) succeeded: f64,
    pub(super) failed: f64,
    pub(super) wait: Percentiles,
    pub(super) run: Percentiles,
}

impl Flow {
    pub(super) fn new(stats: &Stats, seconds: f64) -> Self {
        let rate = |count: i64| count as f64 / seconds;
        Self {
            enqueued: rate(stats.enqueued_count),
            succeeded: rate(stats.succeeded_count),
            failed: rate(stats.failed_count),
            wait: Percentiles::new(stats.wait.as_ref()),
            run: Percentiles::new(stats.run.as_ref()),
        }
    }
}

/// Percentiles of the wait time or run time; `None` without data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Percentiles {
    pub(super) p50: Option<Duration>,
    pub(super) p99: Option<Duration>,
}

impl Percentiles {
    fn new(stats: Option<&DurationStats>) -> Self {
        let time = |time: fn(&DurationStats) -> &Option<prost_types::Duration>| {
            stats.and_then(|stats| text::duration(time(stats).as_ref()))
        };
        Self { p50: time(|stats| &stats.p50), p99: time(|stats| &stats.p99) }
    }
}

/// Figures of the view of one task type and its jobs.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    /// Row of the task type, with the counts of the broker's last count.
    pub(super) row: TypeRow,
    /// State that the jobs are filtered by.
    pub(super) state: JobState,
    /// Settings of the type as text.
    pub(super) settings: String,
    pub(super) rows: Vec<JobRow>,
    pub(super) has_more: bool,
    /// Jobs that succeeded in each of the last 60 minutes, oldest minute first.
    pub(super) minutes: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct JobRow {
    pub(super) id: i64,
    pub(super) state: &'static str,
    pub(super) priority: i32,
    pub(super) attempts: String,
    pub(super) created: String,
    pub(super) next: String,
    /// Key and last error of the job.
    pub(super) remark: String,
}
