//! Bulk operations: each changes many jobs of a task type in the background.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{JobConditions, JobState, PagePosition, TaskTypeName, TypeId};

/// The change that a bulk operation makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkChange {
    /// Runs failed jobs again immediately.
    Retry,
    /// Cancels unfinished jobs.
    Cancel,
    /// Discards dead jobs.
    Discard,
    /// Sets the priority of unfinished jobs.
    Reprioritize(i16),
    /// Undoes a bulk operation that has cancelled or discarded jobs.
    Undo(i64),
    /// Moves jobs to another task type.
    Move(TaskTypeName),
    /// Sets fields of jobs.
    Set(BulkFields),
}

/// Arguments of a bulk change. Each change uses at most one of them.
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

/// A bulk change and the selection of its jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct BulkSpec {
    /// The change.
    pub change: BulkChange,
    /// Type of the jobs.
    pub task_type: TaskTypeName,
    /// State of the jobs; `None`: every state that the change applies to.
    pub state: Option<JobState>,
    /// Error group of the jobs; `None`: any.
    pub error_group: Option<String>,
    /// Further conditions on the jobs.
    pub conditions: JobConditions,
    /// Maximum number of jobs per second; `None`: as many as other work permits.
    pub jobs_per_s: Option<i32>,
}

/// State of a bulk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkState {
    /// A broker works on the bulk operation.
    Running,
    /// An operator has paused the bulk operation.
    Paused,
    /// All jobs of the bulk operation have been processed.
    Completed,
    /// The bulk operation was cancelled before all jobs were processed.
    Cancelled,
}

/// A bulk operation.
#[derive(Clone, Debug)]
pub struct Bulk {
    /// Id.
    pub id: i64,
    /// The change and the selection of its jobs.
    pub spec: BulkSpec,
    /// Id of the task type of the jobs.
    pub type_id: TypeId,
    /// Highest id of a job that was enqueued before the bulk operation started. Later jobs are not changed.
    pub last_job_id: i64,
    /// State of the operation.
    pub state: BulkState,
    /// Position of the next job to change; `None` at the start of a pass over the jobs.
    pub at: Option<PagePosition>,
    /// Number of changed jobs.
    pub done: i64,
    /// Number of skipped jobs: they changed their state after the selection, or another job holds their key.
    pub skipped: i64,
    /// Number of jobs whose change failed.
    pub failed: i64,
    /// Number of selected jobs, counted when the bulk operation started.
    pub selected: i64,
    /// Whether more jobs were selected than were counted.
    pub has_more: bool,
    /// Error of the last job whose change failed.
    pub problem: String,
    /// Principal that started the bulk operation; empty if authentication was off.
    pub principal: String,
    /// Address of the client that started the bulk operation.
    pub peer: String,
    /// Reason for the bulk operation, as given by the caller.
    pub reason: String,
    /// Broker that executes the bulk operation; `None` if no broker owns it.
    pub broker: Option<String>,
    /// Time when the bulk operation started.
    pub created: SystemTime,
    /// Time of the last progress or state change of the bulk operation.
    pub updated: SystemTime,
    /// Time when the bulk operation ended; `None` while it is running or paused.
    pub ended: Option<SystemTime>,
}

/// Preview of a bulk operation.
#[derive(Clone, Debug, Default)]
pub struct BulkPreview {
    /// Number of jobs.
    pub selected: i64,
    /// Whether more jobs may be selected than were counted.
    pub has_more: bool,
    /// The first jobs, as examples.
    pub examples: Vec<super::JobView>,
    /// Number of jobs of the task type in the states that the change applies to, at the last count of the type.
    pub in_states: Option<i64>,
    /// Number of selected jobs that are leased.
    pub running: i64,
    /// Whether the task type that the jobs move to does not exist yet.
    pub creates_type: bool,
}

impl BulkChange {
    /// Name in SQL.
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

    /// RPC that makes this change for single jobs, as named in the audit log. No RPC undoes, moves or sets single jobs,
    /// so those changes have `StartBulk`.
    pub const fn method(&self) -> &'static str {
        match self {
            Self::Retry => "RetryJobs",
            Self::Cancel => "CancelJobs",
            Self::Discard => "DiscardJobs",
            Self::Reprioritize(_) => "ReprioritizeJobs",
            Self::Undo(_) | Self::Move(_) | Self::Set(_) => "StartBulk",
        }
    }

    /// The change with this name; `None` if the name is unknown or an argument is missing.
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

    /// Id of the bulk operation to undo.
    pub const fn undoes(&self) -> Option<i64> {
        match self {
            Self::Undo(id) => Some(*id),
            _ => None,
        }
    }

    /// Task type that the jobs move to.
    pub const fn to_type(&self) -> Option<&TaskTypeName> {
        match self {
            Self::Move(name) => Some(name),
            _ => None,
        }
    }

    /// Fields to set.
    pub const fn fields(&self) -> Option<&BulkFields> {
        match self {
            Self::Set(fields) => Some(fields),
            _ => None,
        }
    }

    /// Whether the change can be undone.
    pub const fn can_be_undone(&self) -> bool {
        matches!(self, Self::Cancel | Self::Discard)
    }

    /// States of the jobs to change, in processing order. Jobs usually pass through the states in this order, so few
    /// are missed.
    pub const fn states(&self) -> &'static [JobState] {
        match self {
            Self::Retry => &[JobState::Scheduled, JobState::Dead],
            Self::Discard => &[JobState::Dead],
            Self::Reprioritize(_) => &[JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Leased],
            // An undo reads its jobs and their previous states from the journal of the bulk operation. This single
            // state stands for all of them.
            Self::Undo(_) => &[JobState::Cancelled],
            // A move excludes leased jobs, because their workers know them by their task type.
            Self::Move(_) => &[JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Dead],
            // A new start time excludes leased jobs, which have started, and dead jobs, which have no start time.
            Self::Set(fields) if fields.has_start() => &[JobState::Scheduled, JobState::Waiting, JobState::Ready],
            Self::Cancel | Self::Set(_) => {
                &[JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Leased, JobState::Dead]
            }
        }
    }

    /// Whether the change applies only to jobs that failed before the bulk operation started.
    pub const fn only_failed(&self) -> bool {
        matches!(self, Self::Retry | Self::Discard)
    }

    /// Whether to make another pass over the jobs, for those that changed their state meanwhile. Retried and discarded
    /// jobs do not reenter the selection. Jobs with a new start time may reenter it after a failed attempt, but their
    /// start time must not be set again.
    pub fn repeats_rounds(&self) -> bool {
        !self.only_failed() && !self.fields().is_some_and(BulkFields::has_start)
    }
}

impl BulkSpec {
    /// States of the jobs to change.
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

    /// Name in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// Fields of jobs to set; unset fields stay unchanged. SQL reads this struct as JSON under these names
/// (`server/engine/schema/functions/set.sql`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BulkFields {
    /// Maximum number of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i16>,
    /// Timeout of an attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// Start time in µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_us: Option<i64>,
    /// Delay after the start of the bulk operation, by the database's clock. It is stored as `start_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
    /// Tags to add.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_tags: Vec<String>,
    /// Tags to remove.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove_tags: Vec<String>,
}

impl BulkFields {
    /// Whether the start time is set.
    pub const fn has_start(&self) -> bool {
        self.start_us.is_some() || self.delay_ms.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_states_are_parsed_from_their_names() {
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
        assert_eq!((start.repeats_rounds(), attempts.repeats_rounds()), (false, true));
        assert_eq!((BulkChange::Retry.repeats_rounds(), BulkChange::Cancel.repeats_rounds()), (false, true));
    }

    #[test]
    fn only_failed_jobs_have_an_error_group() {
        let mut spec = BulkSpec {
            change: BulkChange::Cancel,
            task_type: TaskTypeName::parse("a").unwrap(),
            state: None,
            error_group: None,
            conditions: JobConditions::default(),
            jobs_per_s: None,
        };
        assert_eq!(spec.states().len(), 5);
        spec.error_group = Some("no".into());
        assert_eq!(spec.states(), [JobState::Scheduled, JobState::Dead]);
        spec.state = Some(JobState::Ready);
        assert_eq!(spec.states(), []);
    }
}
