//! Bulk operations: a change of many jobs of a type.

use std::time::SystemTime;

use super::{JobState, PagePosition, TaskTypeName, TypeId};

/// What a bulk operation does with its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkChange {
    /// Runs failed jobs again, now.
    Retry,
    /// Cancels unfinished jobs.
    Cancel,
    /// Discards dead jobs.
    Discard,
    /// Gives unfinished jobs this priority.
    Reprioritize(i16),
    /// Puts back what this bulk operation has cancelled or discarded.
    Undo(i64),
}

/// A change, and the jobs that are changed.
#[derive(Clone, Debug, PartialEq)]
pub struct BulkSpec {
    /// The change.
    pub change: BulkChange,
    /// Their type.
    pub task_type: TaskTypeName,
    /// Their state; `None`: each state that the change is for.
    pub state: Option<JobState>,
    /// Their error group; `None`: any.
    pub error_group: Option<String>,
    /// The most jobs in a second; `None`: as many as other work leaves room for.
    pub jobs_per_s: Option<i32>,
}

/// How a bulk operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkState {
    /// Brokers work on it.
    Running,
    /// Somebody has paused it.
    Paused,
    /// All of its jobs were handled.
    Completed,
    /// It was ended before.
    Cancelled,
}

/// A bulk operation.
#[derive(Clone, Debug)]
pub struct Bulk {
    /// Its id.
    pub id: i64,
    /// The change and the jobs.
    pub spec: BulkSpec,
    /// The type of the jobs.
    pub type_id: TypeId,
    /// The last job that was enqueued before it started.
    pub last_job_id: i64,
    /// How it stands.
    pub state: BulkState,
    /// The position to go on from; `None`: the start of a round.
    pub at: Option<PagePosition>,
    /// Jobs that were changed.
    pub done: i64,
    /// Jobs that were selected and had moved on, or whose key another job holds.
    pub skipped: i64,
    /// Jobs that could not be changed.
    pub failed: i64,
    /// Jobs that were counted at the start.
    pub selected: i64,
    /// Whether there were more.
    pub has_more: bool,
    /// Why the last job could not be changed.
    pub problem: String,
    /// Who started it.
    pub principal: String,
    /// From which address.
    pub peer: String,
    /// Why.
    pub reason: String,
    /// The broker that works on it.
    pub broker: Option<String>,
    /// When it was started.
    pub created: SystemTime,
    /// When it changed last.
    pub updated: SystemTime,
    /// When it ended.
    pub ended: Option<SystemTime>,
}

/// What a bulk operation would change.
#[derive(Clone, Debug, Default)]
pub struct BulkPreview {
    /// The number of jobs.
    pub selected: i64,
    /// Whether there may be more.
    pub has_more: bool,
    /// The first of them.
    pub examples: Vec<super::JobView>,
    /// Jobs of the type in these states, as they were counted last.
    pub in_states: Option<i64>,
}

impl BulkChange {
    /// Its name in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Discard => "discard",
            Self::Reprioritize(_) => "reprioritize",
            Self::Undo(_) => "undo",
        }
    }

    /// The call that makes this change, for the audit. There is none that undoes single jobs.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Retry => "RetryJobs",
            Self::Cancel => "CancelJobs",
            Self::Discard => "DiscardJobs",
            Self::Reprioritize(_) => "ReprioritizeJobs",
            Self::Undo(_) => "StartBulk",
        }
    }

    /// The change of that name.
    pub fn from_name(name: &str, priority: Option<i16>, undo: Option<i64>) -> Option<Self> {
        let (priority, undo) = (priority.unwrap_or_default(), undo.unwrap_or_default());
        let all = [Self::Retry, Self::Cancel, Self::Discard, Self::Reprioritize(priority), Self::Undo(undo)];
        all.into_iter().find(|change| change.name() == name)
    }

    /// The new priority.
    pub const fn priority(self) -> Option<i16> {
        match self {
            Self::Reprioritize(priority) => Some(priority),
            _ => None,
        }
    }

    /// The bulk operation that it undoes.
    pub const fn undoes(self) -> Option<i64> {
        match self {
            Self::Undo(id) => Some(id),
            _ => None,
        }
    }

    /// Whether it can be undone.
    pub const fn can_be_undone(self) -> bool {
        matches!(self, Self::Cancel | Self::Discard)
    }

    /// The states of the jobs that it changes, in an order in which few that move are missed.
    pub const fn states(self) -> &'static [JobState] {
        match self {
            Self::Retry => &[JobState::Scheduled, JobState::Dead],
            Self::Cancel => {
                &[JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Leased, JobState::Dead]
            }
            Self::Discard => &[JobState::Dead],
            Self::Reprioritize(_) => &[JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Leased],
            // It stands for all that the journal has: the journal says in which state they were.
            Self::Undo(_) => &[JobState::Cancelled],
        }
    }

    /// Whether the jobs must have failed before the operation started.
    pub const fn is_of_failed(self) -> bool {
        matches!(self, Self::Retry | Self::Discard)
    }
}

impl BulkSpec {
    /// The states in which the jobs are.
    pub fn states(&self) -> Vec<JobState> {
        // Only failed jobs have an error group.
        let has_group = |state: JobState| matches!(state, JobState::Scheduled | JobState::Dead);
        let states = self.change.states().iter().copied();
        states
            .filter(|state| self.state.is_none_or(|only| only == *state))
            .filter(|state| self.error_group.is_none() || has_group(*state))
            .collect()
    }
}

impl BulkState {
    const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Completed, Self::Cancelled];

    /// Its name in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let failed = [BulkChange::Retry, BulkChange::Cancel, BulkChange::Discard];
        for change in failed.into_iter().chain([BulkChange::Reprioritize(-5), BulkChange::Undo(7)]) {
            assert_eq!(BulkChange::from_name(change.name(), change.priority(), change.undoes()), Some(change));
        }
        for state in BulkState::ALL {
            assert_eq!(BulkState::from_name(state.name()), Some(state));
        }
        assert_eq!((BulkChange::from_name("x", None, None), BulkState::from_name("x")), (None, None));
    }

    #[test]
    fn only_failed_jobs_have_an_error_group() {
        let mut spec = BulkSpec {
            change: BulkChange::Cancel,
            task_type: TaskTypeName::parse("a").unwrap(),
            state: None,
            error_group: None,
            jobs_per_s: None,
        };
        assert_eq!(spec.states().len(), 5);
        spec.error_group = Some("no".into());
        assert_eq!(spec.states(), [JobState::Scheduled, JobState::Dead]);
        spec.state = Some(JobState::Ready);
        assert_eq!(spec.states(), []);
    }
}
