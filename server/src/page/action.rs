//! An action of the page: what is done, and to what. Each is a call of the protocol, on jobs or on something else that has a name.

use howdah_proto::v1::JobState;

use super::{
    fields::Wanted,
    params::{Params, query},
    what::What,
    words::{State, number},
};
use crate::error::Error;

/// On what it is done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    /// Jobs by id.
    Jobs(Vec<i64>),
    /// All jobs of a type, in a state, of an error group; also those of a bulk operation to start.
    OfType { task_type: String, state: Option<JobState>, group: String },
    /// A task type itself.
    Type(String),
    /// A limit key of a task type.
    Key { task_type: String, key: String },
    /// A schedule.
    Schedule(String),
    /// A bulk operation.
    Bulk(i64),
}

/// An action on something.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Action {
    pub(super) what: What,
    pub(super) target: Target,
    pub(super) priority: Option<i32>,
    /// The most jobs in a second.
    pub(super) rate: Option<i32>,
    /// Where a bulk operation moves jobs to, or what it sets.
    pub(super) wanted: Wanted,
}

/// The most ids in one form.
pub(crate) const MOST_IDS: usize = 500;

impl Target {
    /// That of a query or a form.
    fn of(what: What, params: &Params) -> Result<Self, Error> {
        let task_type = params.get("type").to_owned();
        if what != What::UndoBulk && (what.is_on_jobs() || what.starts().is_some()) {
            return Self::of_jobs(what, params, task_type);
        }
        Ok(match what {
            What::PauseKey | What::ResumeKey => Self::Key { task_type, key: params.get("key").to_owned() },
            What::RunSchedule | What::PauseSchedule | What::ResumeSchedule => {
                Self::Schedule(params.get("name").to_owned())
            }
            What::PauseBulk | What::ResumeBulk | What::CancelBulk | What::UndoBulk => {
                let id = params.number("bulk")?;
                Self::Bulk(id.ok_or_else(|| Error::invalid("bulk", "is missing"))?)
            }
            _ => Self::Type(task_type),
        })
    }

    /// Jobs by id, or those of a type.
    fn of_jobs(what: What, params: &Params, task_type: String) -> Result<Self, Error> {
        let ids = params.all("id").map(str::parse).collect::<Result<Vec<i64>, _>>();
        let ids = ids.map_err(|_| Error::invalid("id", "is no id of a job"))?;
        if ids.len() > MOST_IDS {
            return Err(Error::invalid("id", format!("is given {} times; at most {MOST_IDS} are taken", ids.len())));
        }
        if !ids.is_empty() && what.is_on_jobs() {
            return Ok(Self::Jobs(ids));
        }
        if task_type.is_empty() {
            let (field, problem) =
                if what.is_on_jobs() { ("id", "is missing: choose at least one job") } else { ("type", "is missing") };
            return Err(Error::invalid(field, problem));
        }
        let state = match params.get("state") {
            "" => None,
            word => Some(State::parse(word).ok_or_else(|| Error::invalid("state", "is no state of a job"))?),
        };
        // So that the number in the question is that of the jobs.
        let dead = matches!(what, What::Retry | What::Discard).then_some(JobState::Dead);
        Ok(Self::OfType { task_type, state: state.or(dead), group: params.get("group").to_owned() })
    }
}

impl Action {
    /// Reads one from a query or a form.
    pub(super) fn of(params: &Params) -> Result<Self, Error> {
        let what =
            What::parse(params.get("do")).ok_or_else(|| Error::invalid("do", "is nothing that this page does"))?;
        let target = Target::of(what, params)?;
        let priority = params.number("priority")?;
        if matches!(what, What::Reprioritize | What::BulkReprioritize) && priority.is_none() {
            return Err(Error::invalid("priority", "is missing"));
        }
        let rate = if what.starts().is_some() { params.number("rate")? } else { None };
        let wanted = Wanted::of(what, params)?;
        Ok(Self { what, target, priority, rate, wanted })
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
            Target::Bulk(id) => pairs.push(("bulk", id.to_string())),
        }
        pairs.extend(self.priority.map(|priority| ("priority", priority.to_string())));
        pairs.extend(self.rate.map(|rate| ("rate", rate.to_string())));
        pairs.extend(self.wanted.pairs());
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
    fn what_is_no_action_is_refused() {
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
    fn what_was_done_is_said_in_fixed_words() {
        let said = |text: &str| done_sentence(&Params::of(text).unwrap());
        assert_eq!(said(&done(What::Retry, 2_000)).unwrap(), "2,000 jobs were retried.");
        assert_eq!(said("done=pause-type").unwrap(), "It was paused.");
        assert_eq!(said("done=bulk-cancel&n=1").unwrap(), "It was started.");
        assert_eq!(said("done=cancel-bulk&n=1").unwrap(), "It was cancelled.");
        assert_eq!((said("done=<b>&n=1"), said("done=retry&n=<b>"), said("")), (None, None, None));
    }
}
