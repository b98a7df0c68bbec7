//! The actions of the page: their names, and their words.

use howdah_proto::v1::BulkOperation;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Retry,
    Cancel,
    Discard,
    Release,
    Reprioritize,
    PauseType,
    ResumeType,
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

/// Words for it.
pub(super) struct Words {
    /// In links and forms.
    pub(super) name: &'static str,
    /// On the button.
    pub(super) button: &'static str,
    /// The call.
    pub(super) call: &'static str,
    /// What follows, for the confirmation.
    pub(super) effect: &'static str,
    /// In the sentence that says what was done.
    pub(super) done: &'static str,
    /// Whether it cannot be undone.
    pub(super) is_final: bool,
}

impl What {
    pub(super) const ALL: [Self; 22] = [
        Self::Retry,
        Self::Cancel,
        Self::Discard,
        Self::Release,
        Self::Reprioritize,
        Self::PauseType,
        Self::ResumeType,
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

    /// Its words.
    pub(super) fn words(self) -> Words {
        let [name, button, call, effect, done] = match self {
            Self::Retry => [
                "retry",
                "Retry",
                "RetryJobs",
                "They run now. Dead jobs have all of their attempts again; scheduled jobs keep those that they have left.",
                "retried",
            ],
            Self::Cancel => [
                "cancel",
                "Cancel",
                "CancelJobs",
                "They end as cancelled. Workers that run them are told to stop.",
                "cancelled",
            ],
            Self::Discard => [
                "discard",
                "Discard",
                "DiscardJobs",
                "Dead jobs end as discarded. They stay in the history for as long as it is kept.",
                "discarded",
            ],
            Self::Release => [
                "release",
                "Take from worker",
                "EndLeases",
                "Their workers lose them. The attempt does not count, and the jobs are ready again at once.",
                "released",
            ],
            Self::Reprioritize => [
                "reprioritize",
                "Set priority",
                "ReprioritizeJobs",
                "Jobs of a lower number run first. For a job that runs, the priority counts from its next attempt.",
                "given another priority",
            ],
            other => return other.words_of_others(),
        };
        Words { name, button, call, effect, done, is_final: matches!(self, Self::Cancel | Self::Discard) }
    }

    /// The words for what is not done to jobs, or not at once.
    fn words_of_others(self) -> Words {
        let [name, button, call, effect] = match self {
            Self::PauseType => [
                "pause-type",
                "Pause",
                "UpdateTaskType",
                "No further job of this type starts. Jobs that run go on, and jobs can be enqueued.",
            ],
            Self::ResumeType => ["resume-type", "Resume", "UpdateTaskType", "Jobs of this type start again."],
            Self::PauseKey => [
                "pause-key",
                "Pause",
                "PauseLimitKey",
                "No further job of this limit key starts until it is resumed. Jobs that run go on.",
            ],
            Self::ResumeKey => ["resume-key", "Resume", "ResumeLimitKey", "Jobs of this limit key start again."],
            Self::RunSchedule => [
                "run-schedule",
                "Run",
                "RunSchedule",
                "Its job is enqueued now, in addition to the plan, even if another one of its jobs runs.",
            ],
            Self::PauseSchedule => {
                ["pause-schedule", "Pause", "PauseSchedule", "It does not fire until it is resumed. Its jobs go on."]
            }
            Self::ResumeSchedule => {
                ["resume-schedule", "Resume", "ResumeSchedule", "It fires again, from its next planned time on."]
            }
            other => return other.words_of_bulks(),
        };
        let done = match button {
            "Pause" => "paused",
            "Run" => "run",
            _ => "resumed",
        };
        Words { name, button, call, effect, done, is_final: false }
    }

    /// The words for bulk operations.
    fn words_of_bulks(self) -> Words {
        let [name, button, call, effect, done] = match self {
            Self::BulkRetry => [
                "bulk-retry",
                "Bulk retry",
                "StartBulk",
                "Jobs that have failed run again, in the background. Dead jobs have all of their attempts again.",
                "started",
            ],
            Self::BulkCancel => [
                "bulk-cancel",
                "Bulk cancel",
                "StartBulk",
                "They end as cancelled, in the background. Workers that run them are told to stop.",
                "started",
            ],
            Self::BulkDiscard => [
                "bulk-discard",
                "Bulk discard",
                "StartBulk",
                "Dead jobs end as discarded, in the background. They stay in the history for as long as it is kept.",
                "started",
            ],
            Self::BulkReprioritize => [
                "bulk-reprioritize",
                "Bulk set priority",
                "StartBulk",
                "They have another priority, in the background. Jobs of a lower number run first.",
                "started",
            ],
            Self::BulkMove => [
                "bulk-move",
                "Bulk move",
                "StartBulk",
                "They become jobs of the other type, in the background, and keep their state and all that is their own. A job whose key \
                 another job holds there is skipped. This cannot be undone: move them back.",
                "started",
            ],
            Self::BulkSet => [
                "bulk-set",
                "Bulk set fields",
                "StartBulk",
                "They get these fields, in the background. This cannot be undone: set them anew.",
                "started",
            ],
            Self::PauseBulk => {
                ["pause-bulk", "Pause", "PauseBulk", "It changes no further job until it is resumed.", "paused"]
            }
            Self::UndoBulk => [
                "undo-bulk",
                "Bulk undo",
                "StartBulk",
                "They are put back as they were, in the background. A job whose key another job holds now stays ended, and so does \
                 one whose time to start has passed. What ended or ran because they had ended is not undone.",
                "started",
            ],
            Self::ResumeBulk => ["resume-bulk", "Resume", "ResumeBulk", "It goes on where it was paused.", "resumed"],
            _ => [
                "cancel-bulk",
                "Cancel",
                "CancelBulk",
                "It changes no further job, and cannot be resumed. Jobs that it has changed stay changed.",
                "cancelled",
            ],
        };
        let is_final = matches!(self, Self::BulkCancel | Self::BulkDiscard | Self::CancelBulk);
        Words { name, button, call, effect, done, is_final }
    }

    /// That of a name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.words().name == name)
    }

    /// What the question begins with, before the jobs.
    pub(super) fn question(self) -> &'static str {
        match self {
            Self::Release => "Take",
            Self::Reprioritize => "Set the priority of",
            Self::BulkReprioritize => "Bulk set the priority of",
            Self::BulkSet => "Bulk set fields of",
            other => other.words().button,
        }
    }

    /// Whether it is done to jobs, and at once.
    pub(super) fn is_on_jobs(self) -> bool {
        matches!(self, Self::Retry | Self::Cancel | Self::Discard | Self::Release | Self::Reprioritize)
    }

    /// What the bulk operation does that it starts.
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

    /// Whether a form that is sent twice must not do it twice.
    pub(super) fn is_once(self) -> bool {
        self == Self::RunSchedule || self.starts().is_some()
    }
}
