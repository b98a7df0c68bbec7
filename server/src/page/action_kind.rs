//! Actions of the page, with their names and texts.

use howdah_proto::v1::BulkOperation;

/// Kind of action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionKind {
    Retry,
    Rerun,
    Cancel,
    Discard,
    Release,
    Reprioritize,
    PauseType,
    ResumeType,
    SetType,
    PauseKey,
    ResumeKey,
    RunSchedule,
    PauseSchedule,
    ResumeSchedule,
    BulkRetry,
    BulkCancel,
    BulkDiscard,
    BulkReprioritize,
    BulkMove,
    BulkSet,
    PauseBulk,
    ResumeBulk,
    CancelBulk,
    UndoBulk,
}

/// Texts that the page shows for an action.
pub(super) struct Words {
    /// Name of the action in links and forms.
    pub(super) name: &'static str,
    pub(super) button: &'static str,
    /// API call.
    pub(super) call: &'static str,
    /// Description of the effect, for the confirmation page.
    pub(super) effect: &'static str,
    /// Past participle, such as `cancelled`, for the message after the action.
    pub(super) done: &'static str,
    /// Whether the action cannot be undone.
    pub(super) is_final: bool,
}

impl ActionKind {
    pub(super) const ALL: [Self; 24] = [
        Self::Retry,
        Self::Rerun,
        Self::Cancel,
        Self::Discard,
        Self::Release,
        Self::Reprioritize,
        Self::PauseType,
        Self::ResumeType,
        Self::SetType,
        Self::PauseKey,
        Self::ResumeKey,
        Self::RunSchedule,
        Self::PauseSchedule,
        Self::ResumeSchedule,
        Self::BulkRetry,
        Self::BulkCancel,
        Self::BulkDiscard,
        Self::BulkReprioritize,
        Self::BulkMove,
        Self::BulkSet,
        Self::PauseBulk,
        Self::ResumeBulk,
        Self::CancelBulk,
        Self::UndoBulk,
    ];

    /// Returns the texts of the action.
    pub(super) fn words(self) -> Words {
        let [name, button, call, effect, done] = match self {
            Self::Retry => [
                "retry",
                "Retry",
                "RetryJobs",
                "The jobs become ready now. Dead jobs get all of their attempts again; scheduled jobs keep the remaining ones.",
                "retried",
            ],
            Self::Rerun => [
                "rerun",
                "Run again",
                "RerunJobs",
                "A copy of each job is enqueued as a new job, with the same payload and options. The finished jobs stay in the history.",
                "run again",
            ],
            Self::Cancel => [
                "cancel",
                "Cancel",
                "CancelJobs",
                "The jobs end as cancelled. Workers that run them are told to stop.",
                "cancelled",
            ],
            Self::Discard => [
                "discard",
                "Discard",
                "DiscardJobs",
                "Dead jobs end as discarded. They stay in the history until its retention ends.",
                "discarded",
            ],
            Self::Release => [
                "release",
                "Take from worker",
                "EndLeases",
                "The workers lose these jobs. The attempts do not count, and the jobs are ready again immediately.",
                "released",
            ],
            Self::Reprioritize => [
                "reprioritize",
                "Set priority",
                "ReprioritizeJobs",
                "Jobs with a lower number run first. For a running job, the priority applies from its next attempt.",
                "given another priority",
            ],
            other => return other.words_of_others(),
        };
        Words { name, button, call, effect, done, is_final: matches!(self, Self::Cancel | Self::Discard) }
    }

    /// Returns the texts of actions that do not change single jobs.
    fn words_of_others(self) -> Words {
        let [name, button, call, effect] = match self {
            Self::PauseType => [
                "pause-type",
                "Pause",
                "UpdateTaskType",
                "No further job of this type starts. Running jobs continue, and jobs can still be enqueued.",
            ],
            Self::ResumeType => ["resume-type", "Resume", "UpdateTaskType", "Jobs of this type start again."],
            Self::SetType => [
                "set-type",
                "Change settings",
                "UpdateTaskType",
                "The type's other settings stay as they are. The change takes effect within a second on all brokers, for later \
                 enqueues, failures and successes; limits and ageing also apply to jobs that wait.",
            ],
            Self::PauseKey => [
                "pause-key",
                "Pause",
                "PauseLimitKey",
                "No further job of this limit key starts until the key is resumed. Running jobs continue.",
            ],
            Self::ResumeKey => ["resume-key", "Resume", "ResumeLimitKey", "Jobs of this limit key start again."],
            Self::RunSchedule => [
                "run-schedule",
                "Run",
                "RunSchedule",
                "The schedule enqueues a job now, in addition to its plan, even if another one of its jobs runs.",
            ],
            Self::PauseSchedule => {
                ["pause-schedule", "Pause", "PauseSchedule", "The schedule enqueues no jobs until it is resumed."]
            }
            Self::ResumeSchedule => [
                "resume-schedule",
                "Resume",
                "ResumeSchedule",
                "The schedule enqueues jobs again, from its next planned time on.",
            ],
            other => return other.words_of_bulks(),
        };
        let done = match button {
            "Pause" => "paused",
            "Run" => "run",
            "Change settings" => "changed",
            _ => "resumed",
        };
        Words { name, button, call, effect, done, is_final: false }
    }

    /// Returns the texts of actions that start or change bulk operations.
    fn words_of_bulks(self) -> Words {
        let [name, button, call, effect, done] = match self {
            Self::BulkRetry => [
                "bulk-retry",
                "Bulk retry",
                "StartBulk",
                "Jobs that have failed run again, in the background. Dead jobs get all of their attempts again.",
                "started",
            ],
            Self::BulkCancel => [
                "bulk-cancel",
                "Bulk cancel",
                "StartBulk",
                "The jobs end as cancelled, in the background. Workers that run them are told to stop.",
                "started",
            ],
            Self::BulkDiscard => [
                "bulk-discard",
                "Bulk discard",
                "StartBulk",
                "Dead jobs end as discarded, in the background. They stay in the history until its retention ends.",
                "started",
            ],
            Self::BulkReprioritize => [
                "bulk-reprioritize",
                "Bulk set priority",
                "StartBulk",
                "The jobs get the new priority, in the background. Jobs with a lower number run first.",
                "started",
            ],
            Self::BulkMove => [
                "bulk-move",
                "Bulk move",
                "StartBulk",
                "The jobs get the new type, in the background, and keep their state, options and attempts. A job is skipped \
                 if a job of the new type holds its key. A move cannot be undone: move the jobs back instead.",
                "started",
            ],
            Self::BulkSet => [
                "bulk-set",
                "Bulk set fields",
                "StartBulk",
                "The jobs get these fields, in the background. This cannot be undone.",
                "started",
            ],
            Self::PauseBulk => [
                "pause-bulk",
                "Pause",
                "PauseBulk",
                "The bulk operation changes no further job until it is resumed.",
                "paused",
            ],
            Self::UndoBulk => [
                "undo-bulk",
                "Bulk undo",
                "StartBulk",
                "The jobs are put back as they were, in the background. A job stays ended if another job now holds its key, or \
                 if its expiry time has passed. Effects on other jobs, such as dependents that were cancelled or started, are not undone.",
                "started",
            ],
            Self::ResumeBulk => {
                ["resume-bulk", "Resume", "ResumeBulk", "The bulk operation continues where it was paused.", "resumed"]
            }
            _ => [
                "cancel-bulk",
                "Cancel",
                "CancelBulk",
                "The bulk operation changes no further jobs, and cannot be resumed. Changed jobs stay changed.",
                "cancelled",
            ],
        };
        let is_final = matches!(self, Self::BulkCancel | Self::BulkDiscard | Self::CancelBulk);
        Words { name, button, call, effect, done, is_final }
    }

    /// Returns the action with this name in links and forms.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.words().name == name)
    }

    /// Returns the beginning of the question on the confirmation page, such as "Set the priority of". The jobs follow.
    pub(super) fn question(self) -> &'static str {
        match self {
            Self::Release => "Take",
            Self::SetType => "Change settings of",
            Self::Reprioritize => "Set the priority of",
            Self::BulkReprioritize => "Bulk set the priority of",
            Self::BulkSet => "Bulk set fields of",
            other => other.words().button,
        }
    }

    /// Whether the action changes the selected jobs immediately, without a bulk operation.
    pub(super) fn is_on_jobs(self) -> bool {
        matches!(self, Self::Retry | Self::Rerun | Self::Cancel | Self::Discard | Self::Release | Self::Reprioritize)
    }

    /// Returns the kind of bulk operation that the action starts.
    pub(super) fn starts(self) -> Option<BulkOperation> {
        match self {
            Self::BulkRetry => Some(BulkOperation::Retry),
            Self::BulkCancel => Some(BulkOperation::Cancel),
            Self::BulkDiscard => Some(BulkOperation::Discard),
            Self::BulkReprioritize => Some(BulkOperation::Reprioritize),
            Self::BulkMove => Some(BulkOperation::Move),
            Self::BulkSet => Some(BulkOperation::Set),
            Self::UndoBulk => Some(BulkOperation::Undo),
            _ => None,
        }
    }

    /// Whether the action must run only once if the browser sends the form again.
    pub(super) fn is_once(self) -> bool {
        matches!(self, Self::RunSchedule | Self::Rerun) || self.starts().is_some()
    }
}
