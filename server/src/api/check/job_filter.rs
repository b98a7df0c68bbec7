//! Checks of filters and conditions that select jobs.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, JobConditions, JobState, Limits},
};
use howdah_engine::operate::{RETRY_STATES, Selection, TypeSelection};
use howdah_proto::v1;

use crate::api::{
    check::{numbers, task_type, text, time},
    verbs::page_token,
};

/// Maximum length of an error group's name, or of an error in the group, in bytes.
pub(crate) const ERROR_GROUP: usize = 2000;

/// Checks a job filter. `states` are the job states that the call supports.
pub(in crate::api) fn selection(
    filter: Option<v1::JobFilter>,
    token: &str,
    states: &[JobState],
    limits: &ClusterSettings,
) -> Result<Selection, Error> {
    let filter = filter.unwrap_or_default();
    if !filter.ids.is_empty() {
        numbers::entries("filter.ids", filter.ids.len(), 1..=limits.batch)?;
        for (field, set) in [
            ("filter.task_type", !filter.task_type.is_empty()),
            ("filter.state", filter.state != 0),
            ("filter.error_group", !filter.error_group.is_empty()),
            ("filter.conditions", filter.conditions.is_some()),
        ] {
            if set {
                return Err(Error::invalid(field, "is set together with ids; set one of them"));
            }
        }
        no_token(token)?;
        return Ok(Selection::Ids(filter.ids.into()));
    }
    if filter.task_type.is_empty() {
        return Err(Error::invalid("filter", "selects no jobs; set ids or task_type"));
    }
    let task_type = task_type("filter.task_type", &filter.task_type)?;
    let conditions = job_conditions("filter.conditions", filter.conditions, limits)?;
    let state = state(filter.state).map_err(|error| error.within("filter"))?;
    if let Some(state) = state.filter(|state| !states.contains(state)) {
        let names: Vec<_> = states.iter().map(|state| state.name()).collect();
        let problem = format!("is {}; allowed are {}", state.name(), names.join(", "));
        return Err(Error::invalid("filter.state", problem));
    }
    let state = of_worker("filter.conditions", &conditions, state, states)?;
    let error_group = error_group("filter.error_group", &filter.error_group)?;
    let may_have_failed = |state: &JobState| RETRY_STATES.contains(state);
    if error_group.is_some() && !state.as_ref().map_or_else(|| states.iter().any(may_have_failed), may_have_failed) {
        return Err(Error::invalid(
            "filter.error_group",
            "is for dead and scheduled jobs only; set state to one of them",
        ));
    }
    let from = page_token::job(token)?;
    if from.is_some_and(|from| !states.contains(&from.state) || state.is_some_and(|state| state != from.state)) {
        return Err(Error::invalid(
            "page_token",
            "is from a call with another filter; repeat that filter, or leave page_token out",
        ));
    }
    Ok(Selection::OfType(TypeSelection { task_type, state, error_group, conditions, from }))
}

/// Returns the state to select, which is `Leased` if the conditions name a worker. Fails if the request has another state, or
/// if `states`, the job states that the call supports, lacks `Leased`.
pub(in crate::api) fn of_worker(
    field: &str,
    conditions: &JobConditions,
    state: Option<JobState>,
    states: &[JobState],
) -> Result<Option<JobState>, Error> {
    if conditions.worker_id.is_none() {
        return Ok(state);
    }
    let problem = match state {
        _ if !states.contains(&JobState::Leased) => {
            "selects leased jobs, which this call does not change; leave it out"
        }
        Some(JobState::Leased) | None => return Ok(Some(JobState::Leased)),
        Some(_) => "selects leased jobs; set state to LEASED, or leave state out",
    };
    Err(Error::invalid(format!("{field}.worker_id"), problem))
}

/// Checks that a call that names ids has no page token.
pub(in crate::api) fn no_token(token: &str) -> Result<(), Error> {
    if token.is_empty() {
        return Ok(());
    }
    Err(Error::invalid("page_token", "is set together with ids; one call handles all ids, so leave it out"))
}

/// Checks the name of an error group, or an error in it. Returns `None` for an empty text.
pub(in crate::api) fn error_group(field: &str, group: &str) -> Result<Option<String>, Error> {
    text::short(field, group, ERROR_GROUP)?;
    if group.contains('\0') {
        return Err(Error::invalid(field, format!("{} has a NUL character; none are allowed", text::shown(group))));
    }
    Ok(Some(group.to_owned()).filter(|group| !group.is_empty()))
}

/// Parses a job state; `None` for the number 0, which means every state.
pub(in crate::api) fn state(number: i32) -> Result<Option<JobState>, Error> {
    match JobState::from_proto(number) {
        None if number != 0 => Err(Error::invalid("state", format!("is the unknown value {number}"))),
        state => Ok(state),
    }
}

/// Maximum value of the conditions on attempts. No job has more attempts.
const ATTEMPTS: i64 = 1_000;
/// Length of the public id of a worker, in hexadecimal digits.
const WORKER_ID: usize = 16;

/// Checks the conditions in the field `field` of a message. An unset field means no conditions.
pub(in crate::api) fn job_conditions(
    field: &str,
    given: Option<v1::JobConditions>,
    limits: &ClusterSettings,
) -> Result<JobConditions, Error> {
    given.map_or(Ok(JobConditions::default()), |given| conditions(given, limits).map_err(|error| error.within(field)))
}

fn conditions(given: v1::JobConditions, limits: &ClusterSettings) -> Result<JobConditions, Error> {
    let created_before_us = given.created_before.map(|at| time::at("created_before", at)).transpose()?;
    let created_since_us = given.created_since.map(|at| time::at("created_since", at)).transpose()?;
    if created_since_us.is_some() && created_before_us.is_some_and(|before| Some(before) <= created_since_us) {
        return Err(Error::invalid("created_before", "is not later than created_since"));
    }
    let attempts_at_least = attempts("attempts_at_least", given.attempts_at_least)?;
    let attempts_at_most = attempts("attempts_at_most", given.attempts_at_most)?;
    if let (Some(least), Some(most)) = (attempts_at_least, attempts_at_most)
        && least > most
    {
        return Err(Error::invalid(
            "attempts_at_most",
            format!("is {most}, less than attempts_at_least, which is {least}"),
        ));
    }
    Ok(JobConditions {
        created_before_us,
        created_since_us,
        tag: text::optional("tag", given.tag, Limits::TAG_BYTES)?,
        fair_key: text::optional("fair_key", given.fair_key, limits.key_bytes)?,
        limit_key: text::optional("limit_key", given.limit_key, limits.key_bytes)?,
        attempts_at_least,
        attempts_at_most,
        worker_id: worker_id(given.worker_id)?,
    })
}

fn attempts(field: &str, number: Option<i32>) -> Result<Option<i16>, Error> {
    let number = number.map(|number| numbers::within(field, number.into(), 0..=ATTEMPTS)).transpose()?;
    Ok(number.and_then(|number| i16::try_from(number).ok()))
}

fn worker_id(id: String) -> Result<Option<String>, Error> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if id.is_empty() || (id.len() == WORKER_ID && id.bytes().all(is_digit)) {
        return Ok(Some(id).filter(|id| !id.is_empty()));
    }
    let problem = format!("is {}; give 16 hexadecimal digits, as ListWorkers returns them", text::shown(&id));
    Err(Error::invalid("worker_id", problem))
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    #[test]
    fn the_error_names_the_invalid_condition() {
        let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let none = v1::JobConditions::default;
        let cases = [
            ("c.created_before", v1::JobConditions { created_before: at(-1), ..none() }),
            ("c.created_since", v1::JobConditions { created_since: at(-1), ..none() }),
            ("c.created_before", v1::JobConditions { created_before: at(5), created_since: at(5), ..none() }),
            ("c.tag", v1::JobConditions { tag: "t".repeat(65), ..none() }),
            ("c.tag", v1::JobConditions { tag: "\0".into(), ..none() }),
            ("c.fair_key", v1::JobConditions { fair_key: "k".repeat(201), ..none() }),
            ("c.limit_key", v1::JobConditions { limit_key: "a\nb".into(), ..none() }),
            ("c.worker_id", v1::JobConditions { worker_id: "17".into(), ..none() }),
            ("c.worker_id", v1::JobConditions { worker_id: "0123456789ABCDEF".into(), ..none() }),
            ("c.attempts_at_least", v1::JobConditions { attempts_at_least: Some(-1), ..none() }),
            ("c.attempts_at_most", v1::JobConditions { attempts_at_most: Some(1_001), ..none() }),
            (
                "c.attempts_at_most",
                v1::JobConditions { attempts_at_least: Some(3), attempts_at_most: Some(2), ..none() },
            ),
        ];
        for (field, given) in cases {
            let error = job_conditions("c", Some(given), &ClusterSettings::DEFAULT).expect_err(field);
            assert_eq!(error.field(), Some(field), "{error}");
        }
    }

    #[test]
    fn empty_conditions_select_every_job_and_zero_attempts_are_a_condition() {
        let check = |given| job_conditions("c", given, &ClusterSettings::DEFAULT).unwrap();
        assert!(check(None).is_empty() && check(Some(v1::JobConditions::default())).is_empty());
        let fresh = v1::JobConditions { attempts_at_most: Some(0), ..Default::default() };
        assert_eq!(check(Some(fresh)), JobConditions { attempts_at_most: Some(0), ..JobConditions::default() });
    }
}
