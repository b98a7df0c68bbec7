//! Actions of the page: their kinds and texts, and their targets. Each action is a call of the gRPC API.

use howdah_core::error::Error;
use howdah_proto::v1::{BulkOperation, JobState};

use crate::page::{
    fields::Wanted,
    params::{Params, query},
    type_settings::Given,
    words::{State, number},
};

/// Texts that the page shows for an action.
pub(super) struct Words {
    /// Name of the action in links and forms.
    pub(super) name: &'static str,
    pub(super) button: &'static str,
    /// API call.
    pub(super) call: &'static str,
    /// Past participle, such as `cancelled`, for the message after the action.
    pub(super) done: &'static str,
    /// Description of the effect, for the confirmation page.
    pub(super) effect: &'static str,
}

/// Defines the actions: the kind, and its [`Words`].
macro_rules! actions {
    ($($kind:ident: $name:literal, $button:literal, $call:ident, $done:literal, $effect:literal;)*) => {
        /// Kind of action.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum ActionKind { $($kind),* }

        impl ActionKind {
            pub(super) const ALL: &[Self] = &[$(Self::$kind),*];

            /// Returns the texts of the action.
            pub(super) fn words(self) -> Words {
                let [name, button, call, done, effect] = match self {
                    $(Self::$kind => [$name, $button, stringify!($call), $done, $effect],)*
                };
                Words { name, button, call, done, effect }
            }
        }
    };
}

actions! {
    Retry: "retry", "Retry", RetryJobs, "retried",
        "The jobs become ready now. Dead jobs get all of their attempts again; scheduled jobs keep the remaining \
         ones.";
    Rerun: "rerun", "Run again", RerunJobs, "run again",
        "A copy of each job is enqueued as a new job, with the same payload and options. The finished jobs stay in \
         the history.";
    Cancel: "cancel", "Cancel", CancelJobs, "cancelled",
        "The jobs end as cancelled. Workers that run them are told to stop.";
    Discard: "discard", "Discard", DiscardJobs, "discarded",
        "Dead jobs end as discarded. They stay in the history until its retention ends.";
    Release: "release", "Take from worker", EndLeases, "released",
        "The workers lose these jobs. The attempts do not count, and the jobs are ready again immediately.";
    Reprioritize: "reprioritize", "Set priority", ReprioritizeJobs, "given another priority",
        "Jobs with a lower number run first. For a running job, the priority applies from its next attempt.";
    PauseType: "pause-type", "Pause", UpdateTaskType, "paused",
        "No further job of this type starts. Running jobs continue, and jobs can still be enqueued.";
    ResumeType: "resume-type", "Resume", UpdateTaskType, "resumed",
        "Jobs of this type start again.";
    SetType: "set-type", "Change settings", UpdateTaskType, "changed",
        "The type's other settings stay as they are. The change takes effect within a second on all brokers, for \
         later enqueues, failures and successes; limits and ageing also apply to jobs that wait.";
    PauseKey: "pause-key", "Pause", PauseLimitKey, "paused",
        "No further job of this limit key starts until the key is resumed. Running jobs continue.";
    ResumeKey: "resume-key", "Resume", ResumeLimitKey, "resumed",
        "Jobs of this limit key start again.";
    RunSchedule: "run-schedule", "Run", RunSchedule, "run",
        "The schedule enqueues a job now, in addition to its plan, even if another one of its jobs runs.";
    PauseSchedule: "pause-schedule", "Pause", PauseSchedule, "paused",
        "The schedule enqueues no jobs until it is resumed.";
    ResumeSchedule: "resume-schedule", "Resume", ResumeSchedule, "resumed",
        "The schedule enqueues jobs again, from its next planned time on.";
    BulkRetry: "bulk-retry", "Bulk retry", StartBulk, "started",
        "Jobs that have failed run again, in the background. Dead jobs get all of their attempts again.";
    BulkCancel: "bulk-cancel", "Bulk cancel", StartBulk, "started",
        "The jobs end as cancelled, in the background. Workers that run them are told to stop.";
    BulkDiscard: "bulk-discard", "Bulk discard", StartBulk, "started",
        "Dead jobs end as discarded, in the background. They stay in the history until its retention ends.";
    BulkReprioritize: "bulk-reprioritize", "Bulk set priority", StartBulk, "started",
        "The jobs get the new priority, in the background. Jobs with a lower number run first.";
    BulkMove: "bulk-move", "Bulk move", StartBulk, "started",
        "The jobs get the new type, in the background, and keep their state, options and attempts. A job is skipped \
         if a job of the new type holds its key. A move cannot be undone: move the jobs back instead.";
    BulkSet: "bulk-set", "Bulk set fields", StartBulk, "started",
        "The jobs get these fields, in the background. This cannot be undone.";
    PauseBulk: "pause-bulk", "Pause", PauseBulk, "paused",
        "The bulk operation changes no further job until it is resumed.";
    ResumeBulk: "resume-bulk", "Resume", ResumeBulk, "resumed",
        "The bulk operation continues where it was paused.";
    CancelBulk: "cancel-bulk", "Cancel", CancelBulk, "cancelled",
        "The bulk operation changes no further jobs, and cannot be resumed. Changed jobs stay changed.";
    UndoBulk: "undo-bulk", "Bulk undo", StartBulk, "started",
        "The jobs are put back as they were, in the background. A job stays ended if another job now holds its key, \
         or if its expiry time has passed. Effects on other jobs, such as dependents that were cancelled or started, \
         are not undone.";
}

impl ActionKind {
    /// Whether the action cannot be undone.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Cancel | Self::Discard | Self::BulkCancel | Self::BulkDiscard | Self::CancelBulk)
    }

    /// Returns the action with this name in links and forms.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.words().name == name)
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

/// Object or jobs that an action changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    /// Jobs by id.
    Jobs(Vec<i64>),
    /// All jobs of a task type, optionally only those in one state or error group. Also the jobs of a new bulk
    /// operation.
    OfType { task_type: String, state: Option<JobState>, group: String },
    /// A task type.
    Type(String),
    /// A limit key of a task type.
    Key { task_type: String, key: String },
    /// A schedule.
    Schedule(String),
    /// A bulk operation.
    Bulk(i64),
}

/// An action and its target.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Action {
    pub(super) kind: ActionKind,
    pub(super) target: Target,
    pub(super) priority: Option<i32>,
    /// Maximum number of jobs per second, for an action that starts a bulk operation; `None` for no limit.
    pub(super) rate: Option<i32>,
    /// Form fields of a bulk operation: the destination task type or the job fields to set, and conditions on the jobs.
    pub(super) wanted: Wanted,
    /// Settings of a task type to change.
    pub(super) given: Given,
}

/// Maximum number of job ids in one form.
pub(crate) const MOST_IDS: usize = 500;

impl Target {
    /// Reads an action's target from the parameters of a query or a form.
    fn from_params(kind: ActionKind, params: &Params) -> Result<Self, Error> {
        let task_type = params.get("type").to_owned();
        if kind != ActionKind::UndoBulk && (kind.is_on_jobs() || kind.starts().is_some()) {
            return Self::of_jobs(kind, params, task_type);
        }
        Ok(match kind {
            ActionKind::PauseKey | ActionKind::ResumeKey => Self::Key { task_type, key: params.get("key").to_owned() },
            ActionKind::RunSchedule | ActionKind::PauseSchedule | ActionKind::ResumeSchedule => {
                Self::Schedule(params.get("name").to_owned())
            }
            ActionKind::PauseBulk | ActionKind::ResumeBulk | ActionKind::CancelBulk | ActionKind::UndoBulk => {
                let id = params.number("bulk")?;
                Self::Bulk(id.ok_or_else(|| Error::invalid("bulk", "is missing"))?)
            }
            _ => Self::Type(task_type),
        })
    }

    /// Reads the jobs that an action changes: jobs by id, or all jobs of a task type.
    fn of_jobs(kind: ActionKind, params: &Params, task_type: String) -> Result<Self, Error> {
        let ids = params.all("id").map(str::parse).collect::<Result<Vec<i64>, _>>();
        let ids = ids.map_err(|_| Error::invalid("id", "is not a job id"))?;
        if ids.len() > MOST_IDS {
            return Err(Error::invalid("id", format!("is given {} times; at most {MOST_IDS} are allowed", ids.len())));
        }
        if !ids.is_empty() && kind.is_on_jobs() {
            return Ok(Self::Jobs(ids));
        }
        if task_type.is_empty() {
            let (field, problem) =
                if kind.is_on_jobs() { ("id", "is missing: choose at least one job") } else { ("type", "is missing") };
            return Err(Error::invalid(field, problem));
        }
        let state = match params.get("state") {
            "" => None,
            word => Some(State::parse(word).ok_or_else(|| Error::invalid("state", "is not a job state"))?),
        };
        // Without a state in the form, retry and discard of a whole type apply to its dead jobs.
        let dead = matches!(kind, ActionKind::Retry | ActionKind::Discard).then_some(JobState::Dead);
        Ok(Self::OfType { task_type, state: state.or(dead), group: params.get("group").to_owned() })
    }
}

impl Action {
    /// Reads an action from a query or a form.
    pub(super) fn from_params(params: &Params) -> Result<Self, Error> {
        let kind =
            ActionKind::parse(params.get("do")).ok_or_else(|| Error::invalid("do", "is not an action of this page"))?;
        let target = Target::from_params(kind, params)?;
        let priority = params.number("priority")?;
        if matches!(kind, ActionKind::Reprioritize | ActionKind::BulkReprioritize) && priority.is_none() {
            return Err(Error::invalid("priority", "is missing"));
        }
        let rate = if kind.starts().is_some() { params.number("rate")? } else { None };
        let wanted = Wanted::from_params(kind, params)?;
        let given = Given::from_params(kind, params);
        Ok(Self { kind, target, priority, rate, wanted, given })
    }

    /// Returns the form fields that encode the action. `Action::from_params` parses them.
    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![("do", self.kind.words().name.to_owned())];
        match &self.target {
            Target::Jobs(ids) => pairs.extend(ids.iter().map(|id| ("id", id.to_string()))),
            Target::OfType { task_type, state, group } => {
                pairs.push(("type", task_type.clone()));
                pairs.extend(state.map(|state| ("state", State::new(state).word.to_owned())));
                pairs.push(("group", group.clone()));
            }
            Target::Type(name) => pairs.push(("type", name.clone())),
            Target::Key { task_type, key } => pairs.extend([("type", task_type.clone()), ("key", key.clone())]),
            Target::Schedule(name) => pairs.push(("name", name.clone())),
            Target::Bulk(id) => pairs.push(("bulk", id.to_string())),
        }
        pairs.extend(self.priority.map(|priority| ("priority", priority.to_string())));
        pairs.extend(self.rate.map(|rate| ("rate", rate.to_string())));
        pairs.extend(self.wanted.pairs());
        pairs.extend(self.given.pairs());
        pairs
    }
}

/// Returns the query parameters that make the next page report the completed action.
pub(super) fn done(kind: ActionKind, count: usize) -> String {
    query([("done", kind.words().name), ("n", &count.to_string())])
}

/// Returns the message about a completed action, if the query contains the parameters of [`done`].
pub(super) fn done_sentence(params: &Params) -> Option<String> {
    let kind = ActionKind::parse(params.get("done"))?;
    let done = kind.words().done;
    if !kind.is_on_jobs() {
        return Some(format!("Done: {done}."));
    }
    Some(match params.get("n").parse::<i64>().ok()? {
        0 => format!("No job was {done}: the states of the selected jobs have changed."),
        1 => format!("1 job was {done}."),
        n => format!("{} jobs were {done}.", number(n)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Action, Error> {
        Action::from_params(&Params::parse(text).unwrap())
    }

    #[test]
    fn an_action_is_read_back_as_it_was_written() {
        for text in [
            "do=retry&id=1&id=-2",
            "do=discard&type=a&state=dead&group=no+route+%23",
            "do=reprioritize&type=a&priority=-5",
            "do=pause-type&type=a",
            "do=set-type&type=a&max_attempts=3&timeout=1m+30s",
            "do=pause-key&type=a&key=b+c",
            "do=run-schedule&name=a",
            "do=bulk-retry&type=a&group=no+route+%23&rate=10",
            "do=bulk-reprioritize&type=a&state=ready&priority=-5",
            "do=pause-bulk&bulk=7",
            "do=undo-bulk&bulk=7&rate=10",
            "do=bulk-move&type=a&state=ready&to=b",
            "do=bulk-set&type=a&attempts=9&timeout=90s&delay=0s&add=x,+y&remove=z",
            "do=bulk-set&type=a&run_at=2027-01-01T03:00:00Z",
        ] {
            let action = parse(text).unwrap();
            let pairs = action.pairs();
            let again = query(pairs.iter().map(|(name, value)| (*name, value.as_str())));
            assert_eq!(parse(&again).unwrap(), action, "{text}");
        }
    }

    #[test]
    fn an_invalid_action_is_refused() {
        for text in [
            "",
            "do=drop&id=1",
            "do=retry",
            "do=retry&id=x",
            "do=cancel&type=a&state=gone",
            "do=reprioritize&id=1",
            "do=bulk-retry&id=1",
            "do=bulk-retry&type=a&rate=fast",
            "do=bulk-reprioritize&type=a",
            "do=bulk-set&type=a&attempts=many",
            "do=bulk-set&type=a&timeout=long",
            "do=bulk-set&type=a&delay=1h&run_at=2027-01-01T03:00:00Z",
            "do=bulk-set&type=a&run_at=tomorrow",
            "do=cancel-bulk",
            "do=cancel-bulk&bulk=x",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&format!("do=retry{}", "&id=1".repeat(501))).is_err());
    }

    #[test]
    fn the_result_of_an_action_is_shown_in_fixed_words() {
        let done_text = |text: &str| done_sentence(&Params::parse(text).unwrap());
        assert_eq!(done_text(&done(ActionKind::Retry, 2_000)).unwrap(), "2,000 jobs were retried.");
        assert_eq!(done_text("done=pause-type").unwrap(), "Done: paused.");
        assert_eq!(done_text("done=bulk-cancel&n=1").unwrap(), "Done: started.");
        assert_eq!(done_text("done=cancel-bulk&n=1").unwrap(), "Done: cancelled.");
        assert_eq!((done_text("done=<b>&n=1"), done_text("done=retry&n=<b>"), done_text("")), (None, None, None));
    }
}
