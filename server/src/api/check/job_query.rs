//! Checks of queries for jobs and for error groups.

use std::time::Duration;

use howdah_proto::v1;

use super::{numbers, task_type, text, time};
use crate::{
    api::page_token,
    error::Error,
    job::{ClusterSettings, JobState, PagePosition, TaskTypeName},
    operate::{ListQuery, ReprioritizeQuery},
};

pub(crate) const PAGE: usize = 100;
pub(crate) const MAX_PAGE: usize = 1000;
/// Wait time of a request without a timeout.
pub(crate) const WAIT: Duration = Duration::from_mins(1);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_hours(24);
/// Maximum length of an error group's name, or of an error in the group, in bytes.
pub(crate) const ERROR_GROUP: usize = 2000;

/// Checks a query for a page of a type's jobs.
pub(crate) fn list_jobs(request: &v1::ListJobsRequest) -> Result<ListQuery, Error> {
    let state = state(request.state)?;
    let from = page_token::position(&request.page_token)?;
    if let (Some(state), Some(from)) = (state, from)
        && from.state != state
    {
        let problem = format!(
            "is from a list of {} jobs, not of {} jobs; repeat that state, or leave page_token out",
            from.state.name(),
            state.name()
        );
        return Err(Error::invalid("page_token", problem));
    }
    let error_group = error_group("error_group", &request.error_group)?;
    if error_group.is_some() && state != Some(JobState::Dead) {
        return Err(Error::invalid("error_group", "is for dead jobs only; set state to JOB_STATE_DEAD"));
    }
    let by_attempts = by_attempts(request, state)?;
    Ok(ListQuery {
        task_type: task_type("task_type", &request.task_type)?,
        state,
        page_size: numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
        from,
        payload: request.include_payload,
        error_group,
        by_attempts,
    })
}

/// Whether to order jobs by attempts, most first.
fn by_attempts(request: &v1::ListJobsRequest, state: Option<JobState>) -> Result<bool, Error> {
    match v1::JobOrder::try_from(request.order) {
        Err(_) => Err(Error::invalid("order", format!("is the unknown value {}", request.order))),
        Ok(v1::JobOrder::Unspecified) => Ok(false),
        Ok(v1::JobOrder::Attempts) if state.is_some_and(JobState::is_finished) => {
            Err(Error::invalid("order", "by attempts is for jobs that are not finished; set another state, or none"))
        }
        Ok(v1::JobOrder::Attempts) if !request.error_group.is_empty() => {
            Err(Error::invalid("order", "by attempts is not for jobs of one error group; leave error_group out"))
        }
        Ok(v1::JobOrder::Attempts) if !request.page_token.is_empty() => {
            Err(Error::invalid("page_token", "is set, but the order by attempts has one page only; leave it out"))
        }
        Ok(v1::JobOrder::Attempts) => Ok(true),
    }
}

/// Checks a query for error groups. Returns the task type (`None`: all) and the number of groups.
pub(crate) fn list_error_groups(request: &v1::ListErrorGroupsRequest) -> Result<(Option<TaskTypeName>, usize), Error> {
    let name = Some(&request.task_type).filter(|name| !name.is_empty());
    Ok((
        name.map(|name| task_type("task_type", name)).transpose()?,
        numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
    ))
}

/// Checks the name of an error group, or an error in it. Returns `None` if it is empty.
pub(super) fn error_group(field: &str, group: &str) -> Result<Option<String>, Error> {
    text::short(field, group, ERROR_GROUP)?;
    if group.contains('\0') {
        return Err(Error::invalid(field, format!("{} has a NUL character; none are allowed", text::shown(group))));
    }
    Ok(Some(group.to_owned()).filter(|group| !group.is_empty()))
}

/// Checks a wait. Returns the ids of the jobs and the timeout.
pub(crate) fn wait_jobs(request: v1::WaitJobsRequest, limits: &ClusterSettings) -> Result<(Vec<i64>, Duration), Error> {
    numbers::entries("ids", request.ids.len(), 1..=limits.batch)?;
    let timeout = time::optional("timeout", request.timeout, &(Duration::ZERO..=LONGEST_WAIT))?;
    Ok((request.ids, timeout.unwrap_or(WAIT)))
}

/// Checks a change of priorities. Returns the jobs and their new priority.
pub(crate) fn reprioritize_jobs(
    request: v1::ReprioritizeJobsRequest,
    limits: &ClusterSettings,
) -> Result<(ReprioritizeQuery, i16), Error> {
    let priority = super::new_job::priority(request.priority)?;
    if request.task_type.is_empty() {
        numbers::entries("ids", request.ids.len(), 1..=limits.batch)?;
        if !request.page_token.is_empty() {
            return Err(Error::invalid(
                "page_token",
                "is set together with ids; one call handles all ids, so leave it out",
            ));
        }
        return Ok((ReprioritizeQuery::Ids(request.ids.into()), priority));
    }
    if !request.ids.is_empty() {
        return Err(Error::invalid("ids", "is set together with task_type; set one of them"));
    }
    let name = task_type("task_type", &request.task_type)?;
    let from = page_token::position(&request.page_token)?;
    let is_walked =
        |position: &PagePosition| matches!(position.state, JobState::Ready | JobState::Scheduled | JobState::Waiting);
    if from.as_ref().is_some_and(|position| !is_walked(position)) {
        return Err(Error::invalid("page_token", "is not a next_page_token of ReprioritizeJobs"));
    }
    Ok((ReprioritizeQuery::Type(name, from), priority))
}

/// Parses a state; `None` for the number 0, which means every state.
pub(super) fn state(number: i32) -> Result<Option<JobState>, Error> {
    match JobState::from_proto(number) {
        None if number != 0 => Err(Error::invalid("state", format!("is the unknown value {number}"))),
        state => Ok(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> v1::ListJobsRequest {
        v1::ListJobsRequest { task_type: "a".into(), ..Default::default() }
    }

    #[test]
    fn a_type_is_all_that_a_list_needs() {
        let query = list_jobs(&request()).unwrap();
        assert_eq!((query.state, query.page_size, query.from, query.payload), (None, 100, None, false));
        let query = list_jobs(&v1::ListJobsRequest { state: 5, ..request() }).unwrap();
        assert_eq!((query.state, query.by_attempts), (Some(JobState::Dead), false));
        assert!(list_jobs(&v1::ListJobsRequest { order: 1, ..request() }).unwrap().by_attempts);
    }

    #[test]
    fn whatever_is_out_of_bounds_is_named() {
        let dead = page_token::encode(PagePosition { state: JobState::Dead, rank: 0, id: 1 });
        let cases = [
            ("task_type", v1::ListJobsRequest::default()),
            ("state", v1::ListJobsRequest { state: 10, ..request() }),
            ("state", v1::ListJobsRequest { state: -1, ..request() }),
            ("state", v1::ListJobsRequest { state: i32::MAX, ..request() }),
            ("page_size", v1::ListJobsRequest { page_size: -1, ..request() }),
            ("page_token", v1::ListJobsRequest { page_token: "'; --".into(), ..request() }),
            ("error_group", v1::ListJobsRequest { error_group: "e".into(), ..request() }),
            ("error_group", v1::ListJobsRequest { error_group: "e".into(), state: 1, ..request() }),
            ("error_group", v1::ListJobsRequest { error_group: "\0".into(), state: 5, ..request() }),
            ("error_group", v1::ListJobsRequest { error_group: "e".repeat(2001), state: 5, ..request() }),
            ("page_token", v1::ListJobsRequest { page_token: dead.clone(), state: 1, ..request() }),
            ("order", v1::ListJobsRequest { order: 2, ..request() }),
            ("order", v1::ListJobsRequest { order: 1, state: 6, ..request() }),
            ("order", v1::ListJobsRequest { order: 1, state: 5, error_group: "e".into(), ..request() }),
            ("page_token", v1::ListJobsRequest { order: 1, page_token: dead, ..request() }),
        ];
        for (field, request) in cases {
            assert_eq!(list_jobs(&request).expect_err(field).field(), Some(field));
        }
    }

    #[test]
    fn jobs_are_named_by_ids_or_by_their_type_and_not_by_both() {
        let request = |ids: &[i64], task_type: &str, priority| v1::ReprioritizeJobsRequest {
            ids: ids.to_vec(),
            task_type: task_type.into(),
            priority,
            ..Default::default()
        };
        let check = |request| reprioritize_jobs(request, &ClusterSettings::DEFAULT);
        assert!(matches!(check(request(&[1], "", -1000)), Ok((ReprioritizeQuery::Ids(_), -1000))));
        assert!(matches!(check(request(&[], "a", 1000)), Ok((ReprioritizeQuery::Type(_, None), 1000))));
        let dead = page_token::encode(PagePosition { state: JobState::Dead, rank: 0, id: 1 });
        let cases = [
            ("ids", request(&[], "", 0)),
            ("ids", request(&vec![1; 10_001], "", 0)),
            ("ids", request(&[1], "a", 0)),
            ("task_type", request(&[], "a b", 0)),
            ("priority", request(&[1], "", 1001)),
            ("priority", request(&[1], "", i32::MIN)),
            ("page_token", v1::ReprioritizeJobsRequest { page_token: "00".into(), ..request(&[], "a", 0) }),
            ("page_token", v1::ReprioritizeJobsRequest { page_token: dead, ..request(&[], "a", 0) }),
            ("page_token", v1::ReprioritizeJobsRequest { page_token: "00".into(), ..request(&[1], "", 0) }),
        ];
        for (field, request) in cases {
            assert_eq!(check(request).expect_err(field).field(), Some(field));
        }
    }
}
