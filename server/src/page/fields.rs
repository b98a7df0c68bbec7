//! What a form for a bulk operation says of its jobs: the task type that they go to, the fields that they get.

use std::time::Duration;

use howdah_proto::v1::{BulkFields, bulk_fields::Start};

use super::{params::Params, what::What};
use crate::error::Error;

/// The names of these parameters, in the order of the form.
const NAMES: [&str; 7] = ["to", "attempts", "timeout", "delay", "run_at", "add", "remove"];

/// What the form says, as it was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wanted {
    given: Vec<(&'static str, String)>,
    /// The task type that the jobs go to; empty: theirs.
    pub(super) to: String,
    /// The fields that are set; `None`: none is.
    pub(super) fields: Option<BulkFields>,
}

impl Wanted {
    /// That of a query or a form. What is empty is not set; what the operation does not take is left to the call to refuse.
    pub(super) fn of(what: What, params: &Params) -> Result<Self, Error> {
        if what.starts().is_none() {
            return Ok(Self::default());
        }
        let given = NAMES.iter().map(|name| (*name, params.get(name).to_owned()));
        let fields = Some(fields(params)?).filter(|fields| *fields != BulkFields::default());
        Ok(Self {
            given: given.filter(|(_, value)| !value.is_empty()).collect(),
            to: params.get("to").to_owned(),
            fields,
        })
    }

    /// Names and values that say the same again, for a form.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.given.iter().cloned()
    }
}

fn fields(params: &Params) -> Result<BulkFields, Error> {
    let (delay, run_at) = (span(params, "delay")?, params.get("run_at"));
    let start = match (delay, run_at) {
        (Some(_), at) if !at.is_empty() => {
            return Err(Error::invalid("run_at", "is set together with delay; leave one out"));
        }
        (Some(delay), _) => Some(Start::Delay(delay)),
        (None, "") => None,
        (None, at) => {
            let time: jiff::Timestamp = howdah_proto::json::time_text(at)
                .parse()
                .map_err(|_| Error::invalid("run_at", "is no time such as 2027-01-01T03:00:00Z"))?;
            let (seconds, nanos) = (time.as_second(), time.subsec_nanosecond());
            Some(Start::RunAt(prost_types::Timestamp { seconds, nanos }))
        }
    };
    Ok(BulkFields {
        max_attempts: params.number("attempts")?,
        timeout: span(params, "timeout")?,
        start,
        add_tags: tags(params.get("add")),
        remove_tags: tags(params.get("remove")),
    })
}

fn span(params: &Params, name: &'static str) -> Result<Option<prost_types::Duration>, Error> {
    let text = params.get(name);
    if text.is_empty() {
        return Ok(None);
    }
    let bad = || Error::invalid(name, "is no duration such as 90s, 5m or 2h 30m");
    let span: Duration = humantime::parse_duration(text).map_err(|_| bad())?;
    span.try_into().map(Some).map_err(|_| bad())
}

/// Tags with commas between them.
fn tags(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}
