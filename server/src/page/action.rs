//! What can be done, by name: each is a call of the protocol, on jobs or on something else that has a name.

use howdah_proto::v1::JobState;

use super::{
    params::{Params, query},
    words::{State, number},
};
use crate::error::Error;

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
    pub(super) const ALL: [Self; 12] = [
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
                "taken from their workers",
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

    /// The words for what is not done to jobs.
    fn words_of_others(self) -> Words {
        let [name, button, call, effect] = match self {
            Self::PauseType => [
                "pause-type",
                "Pause",
                "UpdateTaskType",
                "No further job of this type starts. Jobs that run go on, and jobs can be enqueued.",
            ],
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
            _ => ["resume-type", "Resume", "UpdateTaskType", "Jobs of this type start again."],
        };
        let done = match button {
            "Pause" => "paused",
            "Run" => "run",
            _ => "resumed",
        };
        Words { name, button, call, effect, done, is_final: false }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.words().name == name)
    }

    fn is_on_jobs(self) -> bool {
        matches!(self, Self::Retry | Self::Cancel | Self::Discard | Self::Release | Self::Reprioritize)
    }
}

/// On what it is done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    /// Jobs by id.
    Jobs(Vec<i64>),
    /// All jobs of a type, in a state, of an error group.
    OfType { task_type: String, state: Option<JobState>, group: String },
    /// A task type itself.
    Type(String),
    /// A limit key of a task type.
    Key { task_type: String, key: String },
    /// A schedule.
    Schedule(String),
}

/// An action on something.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Action {
    pub(super) what: What,
    pub(super) target: Target,
    pub(super) priority: Option<i32>,
}

/// The most ids in one form.
pub(crate) const MOST_IDS: usize = 500;

impl Action {
    /// Reads one from a query or a form.
    pub(super) fn of(params: &Params) -> Result<Self, Error> {
        let what =
            What::parse(params.get("do")).ok_or_else(|| Error::invalid("do", "is nothing that this page does"))?;
        let ids = params.all("id").map(str::parse).collect::<Result<Vec<i64>, _>>();
        let ids = ids.map_err(|_| Error::invalid("id", "is no id of a job"))?;
        if ids.len() > MOST_IDS {
            return Err(Error::invalid("id", format!("is given {} times; at most {MOST_IDS} are taken", ids.len())));
        }
        let task_type = params.get("type").to_owned();
        let target = if !what.is_on_jobs() {
            match what {
                What::PauseKey | What::ResumeKey => Target::Key { task_type, key: params.get("key").to_owned() },
                What::RunSchedule | What::PauseSchedule | What::ResumeSchedule => {
                    Target::Schedule(params.get("name").to_owned())
                }
                _ => Target::Type(task_type),
            }
        } else if !ids.is_empty() {
            Target::Jobs(ids)
        } else if !task_type.is_empty() {
            let state = match params.get("state") {
                "" => None,
                word => Some(State::parse(word).ok_or_else(|| Error::invalid("state", "is no state of a job"))?),
            };
            // So that the number in the question is that of the jobs.
            let dead = matches!(what, What::Retry | What::Discard).then_some(JobState::Dead);
            Target::OfType { task_type, state: state.or(dead), group: params.get("group").to_owned() }
        } else {
            return Err(Error::invalid("id", "is missing: choose at least one job"));
        };
        let priority = params.number("priority")?;
        if what == What::Reprioritize && priority.is_none() {
            return Err(Error::invalid("priority", "is missing"));
        }
        Ok(Self { what, target, priority })
    }

    /// Names and values that say the same again, for a form.
    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![("do", self.what.words().name.to_owned())];
        match &self.target {
            Target::Jobs(ids) => pairs.extend(ids.iter().map(|id| ("id", id.to_string()))),
            Target::OfType { task_type, state, group } => {
                pairs.push(("type", task_type.clone()));
                pairs.extend(state.map(|state| ("state", State::of(state).word.to_owned())));
                pairs.push(("group", group.clone()));
            }
            Target::Type(name) => pairs.push(("type", name.clone())),
            Target::Key { task_type, key } => pairs.extend([("type", task_type.clone()), ("key", key.clone())]),
            Target::Schedule(name) => pairs.push(("name", name.clone())),
        }
        pairs.extend(self.priority.map(|priority| ("priority", priority.to_string())));
        pairs
    }
}

/// The parameters that say what was done.
pub(super) fn done(what: What, count: usize) -> String {
    query([("done", what.words().name), ("n", &count.to_string())])
}

/// The sentence of these parameters.
pub(super) fn done_sentence(params: &Params) -> Option<String> {
    let what = What::parse(params.get("done"))?;
    let done = what.words().done;
    if !what.is_on_jobs() {
        return Some(format!("It was {done}."));
    }
    Some(match params.get("n").parse::<i64>().ok()? {
        0 => format!("No job was {done}: they are in another state by now."),
        1 => format!("1 job was {done}."),
        n => format!("{} jobs were {done}.", number(n)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Action, Error> {
        Action::of(&Params::of(text).unwrap())
    }

    #[test]
    fn an_action_is_read_back_as_it_was_written() {
        for text in [
            "do=retry&id=1&id=-2",
            "do=discard&type=a&state=dead&group=no+route+%23",
            "do=reprioritize&type=a&priority=-5",
            "do=pause-type&type=a",
            "do=pause-key&type=a&key=b+c",
            "do=run-schedule&name=a",
        ] {
            let action = parse(text).unwrap();
            let pairs = action.pairs();
            let again = query(pairs.iter().map(|(name, value)| (*name, value.as_str())));
            assert_eq!(parse(&again).unwrap(), action, "{text}");
        }
    }

    #[test]
    fn what_is_no_action_is_refused() {
        for text in
            ["", "do=drop&id=1", "do=retry", "do=retry&id=x", "do=cancel&type=a&state=gone", "do=reprioritize&id=1"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&format!("do=retry{}", "&id=1".repeat(501))).is_err());
    }

    #[test]
    fn what_was_done_is_said_in_fixed_words() {
        let said = |text: &str| done_sentence(&Params::of(text).unwrap());
        assert_eq!(said(&done(What::Retry, 2_000)).unwrap(), "2,000 jobs were retried.");
        assert_eq!(said("done=pause-type").unwrap(), "It was paused.");
        assert_eq!((said("done=<b>&n=1"), said("done=retry&n=<b>"), said("")), (None, None, None));
    }
}
