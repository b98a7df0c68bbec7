//! Figures read from the broker, in the form in which they are shown.

use std::time::{Duration, Instant};

use howdah_client::proto::{Job, JobState, Stats, TaskType, Worker};

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

    /// Adds the counts of another store.
    pub(super) fn plus(self, other: &Self) -> Self {
        Self {
            ready: self.ready + other.ready,
            leased: self.leased + other.leased,
            scheduled: self.scheduled + other.scheduled,
            waiting: self.waiting + other.waiting,
            dead: self.dead + other.dead,
            oldest: self.oldest.max(other.oldest),
            is_paused: self.is_paused || other.is_paused,
            ..self
        }
    }
}

/// Throughput, wait time and run time of a task type in the last minutes.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    pub(super) stats: Stats,
    /// Length of the time that the statistics cover.
    pub(super) seconds: f64,
}

impl Flow {
    /// Converts a number of jobs to jobs per second. Zero without statistics.
    pub(super) fn rate(&self, count: i64) -> f64 {
        if count == 0 { 0.0 } else { count as f64 / self.seconds }
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
    pub(super) rows: Vec<Job>,
    pub(super) has_more: bool,
    /// Jobs that succeeded in each of the last 60 minutes, oldest minute first.
    pub(super) minutes: Vec<u64>,
}
