//! Conditions on jobs as fields of forms, named as the flags of the command line.

use std::time::SystemTime;

use howdah_core::error::Error;
use howdah_proto::v1::JobConditions;
use prost_types::Timestamp;

use super::params::Params;

/// Form field of a condition.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) placeholder: &'static str,
    /// Value as entered by the user.
    pub(super) value: String,
}

/// Name, label and placeholder of each form field.
const FIELDS: [[&str; 3]; 8] = [
    ["older_than", "Older than", "2h"],
    ["newer_than", "Newer than", "7d"],
    ["tag", "Tag", ""],
    ["fair_key", "Fair key", ""],
    ["limit_key", "Limit key", ""],
    ["worker", "Worker", "16 hex digits"],
    ["attempts_at_least", "Attempts at least", "0"],
    ["attempts_at_most", "Attempts at most", "0"],
];

/// Returns the form fields of all conditions.
pub(super) fn fields(params: &Params) -> Vec<Field> {
    let with_value = |[name, label, placeholder]: [&'static str; 3]| {
        let value = params.get(name).to_owned();
        Field { name, label, placeholder, value }
    };
    FIELDS.into_iter().map(with_value).collect()
}

/// Reads the conditions from the parameters of a query or a form. `None` if no condition is set.
pub(super) fn from_params(params: &Params) -> Result<Option<JobConditions>, Error> {
    let of = |name| params.get(name).to_owned();
    let time = |name| match params.get(name) {
        "" => Ok(None),
        text => time_or_ago(name, text).map(Some),
    };
    let conditions = JobConditions {
        created_before: time("older_than")?,
        created_since: time("newer_than")?,
        tag: of("tag"),
        fair_key: of("fair_key"),
        limit_key: of("limit_key"),
        worker_id: of("worker"),
        attempts_at_least: params.number("attempts_at_least")?,
        attempts_at_most: params.number("attempts_at_most")?,
    };
    Ok(Some(conditions).filter(|conditions| *conditions != JobConditions::default()))
}

/// Returns the parameters from which `from_params` reads the same conditions, in the order of the form fields.
pub(super) fn pairs(conditions: &JobConditions) -> Vec<(&'static str, String)> {
    let number = |number: Option<i32>| number.map(|number| number.to_string()).unwrap_or_default();
    let values = [
        conditions.created_before.map(written).unwrap_or_default(),
        conditions.created_since.map(written).unwrap_or_default(),
        conditions.tag.clone(),
        conditions.fair_key.clone(),
        conditions.limit_key.clone(),
        conditions.worker_id.clone(),
        number(conditions.attempts_at_least),
        number(conditions.attempts_at_most),
    ];
    let pairs = FIELDS.into_iter().zip(values).map(|([name, ..], value)| (name, value));
    pairs.filter(|(_, value)| !value.is_empty()).collect()
}

/// Returns the labels and values of the conditions, for a description.
pub(super) fn facts(conditions: &JobConditions) -> Vec<(&'static str, String)> {
    let label = |name| FIELDS.iter().find(|[known, ..]| *known == name).map_or(name, |[_, label, _]| *label);
    pairs(conditions).into_iter().map(|(name, value)| (label(name), value)).collect()
}

/// Parses a duration before now, or a time.
pub(super) fn time_or_ago(field: &str, text: &str) -> Result<Timestamp, Error> {
    let ago = humantime::parse_duration(text).ok();
    if let Some(at) = ago.and_then(|ago| SystemTime::now().checked_sub(ago)) {
        let at = Timestamp::from(at);
        // Truncates to microseconds, as `written` does. The next page must repeat exactly this search, or its page token is
        // invalid.
        return Ok(Timestamp { nanos: at.nanos - at.nanos % 1_000, ..at });
    }
    let time: Result<jiff::Timestamp, _> = howdah_proto::json::time_text(text).parse();
    let time = time
        .map_err(|_| Error::invalid(field, "must be a duration such as 7d or a time such as 2027-01-01T03:00:00Z"))?;
    Ok(Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() })
}

/// Formats a time for a query string, with microsecond precision.
pub(super) fn written(time: Timestamp) -> String {
    jiff::Timestamp::new(time.seconds, time.nanos).map(|at| format!("{at:.6}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::params::query;

    #[test]
    fn conditions_come_back_from_their_parameters_and_are_described_by_their_labels() {
        let read = |text: &str| from_params(&Params::parse(text).unwrap());
        assert_eq!(read("type=a").unwrap(), None);
        let all = "older_than=2h&newer_than=2026-01-01T00%3A00%3A00Z&tag=a&fair_key=f&limit_key=l&worker=w\
                   &attempts_at_least=1&attempts_at_most=3";
        let conditions = read(all).unwrap().unwrap();
        let written = pairs(&conditions);
        assert_eq!(written.len(), FIELDS.len());
        let again = query(written.iter().map(|(name, value)| (*name, value.as_str())));
        assert_eq!(read(&again).unwrap(), Some(conditions.clone()));
        assert_eq!(facts(&conditions)[2..4], [("Tag", "a".to_owned()), ("Fair key", "f".to_owned())]);
        for bad in ["older_than=soon", "attempts_at_most=x"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
