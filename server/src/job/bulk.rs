//! Bulk operations: a change of many jobs of a type.

use std::time::SystemTime;

use super::{BulkFields, JobState, PagePosition, TaskTypeName, TypeId};

/// What a bulk operation does with its jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Moves jobs to this task type.
    Move(TaskTypeName),
    /// Sets these fields of jobs.
    Set(BulkFields),
}

/// What some changes need.
#[derive(Clone, Debug, Default)]
pub struct BulkArgs {
    /// The new priority.
    pub priority: Option<i16>,
    /// The bulk operation to undo.
    pub undo: Option<i64>,
    /// The task type to move jobs to.
    pub to_type: Option<TaskTypeName>,
    /// The fields to set.
    pub fields: Option<BulkFields>,
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
    /// Those that a worker has.
    pub running: i64,
    /// Whether the type that they go to does not exist yet.
    pub creates_type: bool,
}

impl BulkChange {
    /// Its name in SQL.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Discard => "discard",
            Self::Reprioritize(_) => "reprioritize",
            Self::Undo(_) => "undo",
            Self::Move(_) => "move",
            Self::Set(_) => "set",
        }
    }

    /// The call that makes this change, for the audit. There is none that undoes, moves or sets single jobs.
    pub const fn method(&self) -> &'static str {
        match self {
            Self::Retry => "RetryJobs",
            Self::Cancel => "CancelJobs",
            Self::Discard => "DiscardJobs",
            Self::Reprioritize(_) => "ReprioritizeJobs",
            Self::Undo(_) | Self::Move(_) | Self::Set(_) => "StartBulk",
        }
    }

    /// The change of that name. `None`: there is none, or it lacks what it needs.
    pub fn from_name(name: &str, args: BulkArgs) -> Option<Self> {
        match name {
            "retry" => Some(Self::Retry),
            "cancel" => Some(Self::Cancel),
            "discard" => Some(Self::Discard),
            "reprioritize" => args.priority.map(Self::Reprioritize),
            "undo" => args.undo.map(Self::Undo),
            "move" => args.to_type.map(Self::Move),
            "set" => args.fields.map(Self::Set),
            _ => None,
        }
    }

    /// The new priority.
    pub const fn priority(&self) -> Option<i16> {
        match self {
            Self::Reprioritize(priority) => Some(*priority),
            _ => None,
        }
    }

    /// The bulk operation that it undoes.
    pub const fn undoes(&self) -> Option<i64> {
        match self {
            Self::Undo(id) => Some(*id),
            _ => None,
        }
    }

    /// The task type that jobs go to.
    pub const fn to_type(&self) -> Option<&TaskTypeName> {
        match self {
            Self::Move(name) => Some(name),
            _ => None,
        }
    }

    /// The fields that it sets.
    pub const fn fields(&self) -> Option<&BulkFields> {
        match self {
            Self::Set(fields) => Some(fields),
            _ => None,
        }
    }

    /// Whether it can be undone.
    pub const fn can_be_undone(&self) -> bool {
        matches!(self, Self::Cancel | Self::Discard)
    }

    /// The states of the jobs that it changes, in an order in which few that move are missed.
    pub const fn states(&self) -> &'static [JobState] {
        match self {
            Self::Retry => &[JobState::Scheduled, JobState::Dead],
            Self::Discard => &[JobState::Dead],
            Self::Reprioritize(_) => &[JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Leased],
            // It stands for all that the journal has: the journal says in which state they were.
            Self::Undo(_) => &[JobState::Cancelled],
            // A worker has what runs: it knows the job by its type.
            Self::Move(_) => &[JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Dead],
            // What runs has started, and what is dead does not start by the clock.
            Self::Set(fields) if fields.has_start() => &[JobState::Scheduled, JobState::Waiting, JobState::Ready],
            Self::Cancel | Self::Set(_) => {
                &[JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Leased, JobState::Dead]
            }
        }
    }

    /// Whether the jobs must have failed before the operation started.
    pub const fn is_of_failed(&self) -> bool {
        matches!(self, Self::Retry | Self::Discard)
    }

    /// Whether to look again for jobs that have moved meanwhile. What was retried or discarded does not come back into the
    /// selection. What has got a start time may: it has run and failed since, and must not start at that time again.
    pub fn looks_again(&self) -> bool {
        !self.is_of_failed() && !self.fields().is_some_and(BulkFields::has_start)
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
        let to_type = TaskTypeName::parse("b").unwrap();
        let fields = BulkFields { max_attempts: Some(3), ..BulkFields::default() };
        for change in [
            BulkChange::Retry,
            BulkChange::Cancel,
            BulkChange::Discard,
            BulkChange::Reprioritize(-5),
            BulkChange::Undo(7),
            BulkChange::Move(to_type),
            BulkChange::Set(fields),
        ] {
            let args = BulkArgs {
                priority: change.priority(),
                undo: change.undoes(),
                to_type: change.to_type().cloned(),
                fields: change.fields().cloned(),
            };
            assert_eq!(BulkChange::from_name(change.name(), args).as_ref(), Some(&change));
            let is_whole = matches!(change, BulkChange::Retry | BulkChange::Cancel | BulkChange::Discard);
            assert_eq!(BulkChange::from_name(change.name(), BulkArgs::default()).is_some(), is_whole);
        }
        for state in BulkState::ALL {
            assert_eq!(BulkState::from_name(state.name()), Some(state));
        }
        assert_eq!((BulkChange::from_name("x", BulkArgs::default()), BulkState::from_name("x")), (None, None));
    }

    #[test]
    fn a_start_time_is_for_jobs_that_have_not_started_and_is_set_once() {
        let start = BulkChange::Set(BulkFields { delay_ms: Some(0), ..BulkFields::default() });
        assert_eq!(start.states(), [JobState::Scheduled, JobState::Waiting, JobState::Ready]);
        let attempts = BulkChange::Set(BulkFields { max_attempts: Some(1), ..BulkFields::default() });
        assert_eq!(attempts.states().len(), 5);
        assert_eq!((start.looks_again(), attempts.looks_again()), (false, true));
        assert_eq!((BulkChange::Retry.looks_again(), BulkChange::Cancel.looks_again()), (false, true));
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
