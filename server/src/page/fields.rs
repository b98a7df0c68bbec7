//! Form fields of a bulk operation: the destination task type, the job fields to set, and conditions on the jobs.

use std::time::Duration;

use howdah_core::error::Error;
use howdah_proto::v1::{BulkFields, JobConditions, bulk_fields::Start};

use super::{action::ActionKind, conditions, params::Params};

/// Names of the parameters, in the order of the form.
const NAMES: [&str; 7] = ["to", "attempts", "timeout", "delay", "run_at", "add", "remove"];

/// Parsed form fields, with the original text of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wanted {
    given: Vec<(&'static str, String)>,
    /// Destination task type; empty to keep the type.
    pub(super) to: String,
    /// Fields to set; `None` if no field is set.
    pub(super) fields: Option<BulkFields>,
    /// Conditions on the jobs; `None` if no condition is set.
    pub(super) conditions: Option<JobConditions>,
}

impl Wanted {
    /// Reads the fields from a query or a form. Empty fields are not set. The API call rejects fields that the operation does
    /// not support.
    pub(super) fn from_params(kind: ActionKind, params: &Params) -> Result<Self, Error> {
        if kind.starts().is_none() {
            return Ok(Self::default());
        }
        let given = NAMES.iter().map(|name| (*name, params.get(name).to_owned()));
        let conditions = conditions::from_params(params)?;
        let given = given.chain(conditions.iter().flat_map(conditions::pairs));
        let fields = Some(fields(params)?).filter(|fields| *fields != BulkFields::default());
        Ok(Self {
            given: given.filter(|(_, value)| !value.is_empty()).collect(),
            to: params.get("to").to_owned(),
            fields,
            conditions,
        })
    }

    /// Returns the names and values that encode the fields in a form.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.given.iter().cloned()
    }
}

fn fields(params: &Params) -> Result<BulkFields, Error> {
    let start = match (span(params, "delay")?, time(params, "run_at")?) {
        (Some(_), Some(_)) => return Err(Error::invalid("run_at", "cannot be combined with delay")),
        (Some(delay), None) => Some(Start::Delay(delay)),
        (None, Some(at)) => Some(Start::RunAt(at)),
        (None, None) => None,
    };
    Ok(BulkFields {
        max_attempts: params.number("attempts")?,
        timeout: span(params, "timeout")?,
        start,
        add_tags: tags(params.get("add")),
        remove_tags: tags(params.get("remove")),
    })
}

/// Reads a time; `None` if the field is empty.
pub(super) fn time(params: &Params, name: &'static str) -> Result<Option<prost_types::Timestamp>, Error> {
    let text = params.get(name);
    if text.is_empty() {
        return Ok(None);
    }
    let time: jiff::Timestamp = howdah_proto::json::time_text(text)
        .parse()
        .map_err(|_| Error::invalid(name, "is not a time such as 2027-01-01T03:00:00Z"))?;
    Ok(Some(prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }))
}

/// Reads a duration; `None` if the field is empty.
pub(super) fn span(params: &Params, name: &'static str) -> Result<Option<prost_types::Duration>, Error> {
    let text = params.get(name);
    if text.is_empty() {
        return Ok(None);
    }
    let bad = || Error::invalid(name, "is not a duration such as 90s, 5m or 2h 30m");
    let span: Duration = humantime::parse_duration(text).map_err(|_| bad())?;
    span.try_into().map(Some).map_err(|_| bad())
}

/// Splits a comma-separated list of tags.
pub(super) fn tags(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}
