//! Checks of filters that select jobs.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, JobConditions, JobState},
};
use howdah_engine::operate::{RETRY_STATES, Selection, TypeSelection};
use howdah_proto::v1;

use super::{job_conditions::job_conditions, numbers, task_type, text};
use crate::api::page_token;

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
    let from = page_token::position(token)?;
    if from.is_some_and(|from| !states.contains(&from.state) || state.is_some_and(|state| state != from.state)) {
        return Err(Error::invalid(
            "page_token",
            "is from a call with another filter; repeat that filter, or leave page_token out",
        ));
    }
    Ok(Selection::OfType(TypeSelection { task_type, state, error_group, conditions, from }))
}

/// Returns the state of the jobs. If the conditions name a worker, it is `Leased`, which must be among `states`, the job states that
/// the call supports.
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
