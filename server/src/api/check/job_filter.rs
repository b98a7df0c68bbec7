//! Checks of requests to cancel, retry or discard jobs.

use std::time::{Duration, SystemTime};

use howdah_proto::v1::{self, retry_jobs_request::Start};

use super::{
    job_query::{error_group, state},
    numbers, task_type, text, time,
};
use crate::{
    api::page_token,
    error::Error,
    job::{ClusterSettings, JobState, Limits, truncated},
    operate::{CANCEL_STATES, RETRY_STATES, RetryQuery, Selection, TypeSelection},
    store::RetryStart,
};

/// Selection of a cancel: ids or a filter.
pub(crate) fn cancel_jobs(request: v1::CancelJobsRequest, limits: &ClusterSettings) -> Result<Selection, Error> {
    if request.filter.is_some() {
        if !request.ids.is_empty() {
            return Err(Error::invalid("filter", "is set together with ids; set one of them"));
        }
        return selection(request.filter, &request.page_token, &CANCEL_STATES, limits);
    }
    numbers::entries("ids", request.ids.len(), 1..=limits.batch)?;
    no_token(&request.page_token)?;
    Ok(Selection::Ids(request.ids.into()))
}

/// Checks a retry: the jobs, and when they run.
pub(crate) fn retry_jobs(request: v1::RetryJobsRequest, limits: &ClusterSettings) -> Result<RetryQuery, Error> {
    let selection = selection(request.filter, &request.page_token, &RETRY_STATES, limits)?;
    let start = match request.start {
        None => RetryStart::Now,
        Some(Start::RunAt(at)) => RetryStart::At(time::run_at("run_at", at, SystemTime::now(), limits.max_delay)?),
        Some(Start::Delay(delay)) => {
            let delay = time::duration("delay", delay, &(Duration::ZERO..=limits.max_delay))?;
            RetryStart::After(delay.as_millis() as i64)
        }
    };
    if let Some(payload) = &request.payload {
        text::short("payload", payload, limits.payload_bytes)?;
        if !matches!(&selection, Selection::Ids(jobs) if jobs.ids.len() == 1) {
            return Err(Error::invalid("payload", "is for a single job; set filter.ids to exactly one id"));
        }
    }
    // Copied, because a slice would keep the whole message in memory.
    let payload = request.payload.map(|payload| bytes::Bytes::copy_from_slice(&payload));
    Ok(RetryQuery { selection, start, payload })
}

/// Checks a request to end leases: the jobs, and the error of their attempts.
pub(crate) fn end_leases(
    request: v1::EndLeasesRequest,
    cluster: &ClusterSettings,
    limits: &Limits,
) -> Result<(Vec<i64>, Option<String>), Error> {
    numbers::entries("ids", request.ids.len(), 1..=cluster.batch)?;
    Ok((request.ids, request.error.map(|error| truncated(&error, limits.error_bytes))))
}

/// Checks a request to discard dead jobs.
pub(crate) fn discard_jobs(request: v1::DiscardJobsRequest, limits: &ClusterSettings) -> Result<Selection, Error> {
    selection(request.filter, &request.page_token, &[JobState::Dead], limits)
}

/// Checks a filter. `states` are the states that the call supports.
fn selection(
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
    let state = state(filter.state).map_err(|error| error.within("filter"))?;
    if let Some(state) = state.filter(|state| !states.contains(state)) {
        let names: Vec<_> = states.iter().map(|state| state.name()).collect();
        let problem = format!("is {}; allowed are {}", state.name(), names.join(", "));
        return Err(Error::invalid("filter.state", problem));
    }
    let error_group = error_group("filter.error_group", &filter.error_group)?;
    if error_group.is_some() && state.is_some_and(|state| !RETRY_STATES.contains(&state)) {
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
    Ok(Selection::OfType(TypeSelection { task_type, state, error_group, from }))
}

fn no_token(token: &str) -> Result<(), Error> {
    if token.is_empty() {
        return Ok(());
    }
    Err(Error::invalid("page_token", "is set together with ids; one call handles all ids, so leave it out"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::PagePosition;

    fn of_type() -> v1::JobFilter {
        v1::JobFilter { task_type: "a".into(), ..Default::default() }
    }

    fn ids(count: usize) -> v1::JobFilter {
        v1::JobFilter { ids: vec![-1; count], ..Default::default() }
    }

    fn retry(filter: v1::JobFilter) -> v1::RetryJobsRequest {
        v1::RetryJobsRequest { filter: Some(filter), ..Default::default() }
    }

    #[test]
    fn a_cancel_names_1_to_10000_jobs_or_a_filter() {
        let limits = ClusterSettings::DEFAULT;
        let cancel = |count| cancel_jobs(v1::CancelJobsRequest { ids: vec![-1; count], ..Default::default() }, &limits);
        assert!(cancel(1).is_ok() && cancel(10_000).is_ok());
        for count in [0, 10_001] {
            assert_eq!(cancel(count).unwrap_err().field(), Some("ids"));
        }
        let both = v1::CancelJobsRequest { ids: vec![1], filter: Some(ids(1)), ..Default::default() };
        assert_eq!(cancel_jobs(both, &limits).unwrap_err().field(), Some("filter"));
    }

    #[test]
    fn whatever_names_no_jobs_or_contradicts_itself_is_named() {
        let dead = page_token::encode(PagePosition { state: JobState::Dead, rank: 0, id: 1 });
        let ready = page_token::encode(PagePosition { state: JobState::Ready, rank: 0, id: 1 });
        let cases = [
            ("filter", v1::RetryJobsRequest::default()),
            ("filter", retry(v1::JobFilter::default())),
            ("filter", retry(v1::JobFilter { state: 5, error_group: "e".into(), ..Default::default() })),
            ("filter.ids", retry(ids(10_001))),
            ("filter.task_type", retry(v1::JobFilter { task_type: "a".into(), ..ids(1) })),
            ("filter.task_type", retry(v1::JobFilter { task_type: "a b".into(), ..of_type() })),
            ("filter.state", retry(v1::JobFilter { state: 5, ..ids(1) })),
            ("filter.state", retry(v1::JobFilter { state: 1, ..of_type() })),
            ("filter.state", retry(v1::JobFilter { state: 6, ..of_type() })),
            ("filter.state", retry(v1::JobFilter { state: 99, ..of_type() })),
            ("filter.error_group", retry(v1::JobFilter { error_group: "e".into(), ..ids(1) })),
            ("filter.error_group", retry(v1::JobFilter { error_group: "e".repeat(2001), ..of_type() })),
            ("filter.error_group", retry(v1::JobFilter { error_group: "\0".into(), ..of_type() })),
            ("payload", v1::RetryJobsRequest { payload: Some("p".into()), ..retry(of_type()) }),
            ("payload", v1::RetryJobsRequest { payload: Some("p".into()), ..retry(ids(2)) }),
            ("payload", v1::RetryJobsRequest { payload: Some(vec![0; (1 << 20) + 1].into()), ..retry(ids(1)) }),
            ("page_token", v1::RetryJobsRequest { page_token: dead.clone(), ..retry(ids(1)) }),
            ("page_token", v1::RetryJobsRequest { page_token: ready, ..retry(of_type()) }),
            ("page_token", v1::RetryJobsRequest { page_token: "zz".into(), ..retry(of_type()) }),
            ("page_token", v1::RetryJobsRequest { page_token: dead, ..retry(v1::JobFilter { state: 3, ..of_type() }) }),
            (
                "run_at",
                v1::RetryJobsRequest {
                    start: Some(Start::RunAt(prost_types::Timestamp { seconds: -1, nanos: 0 })),
                    ..retry(ids(1))
                },
            ),
            (
                "delay",
                v1::RetryJobsRequest {
                    start: Some(Start::Delay(prost_types::Duration { seconds: -1, nanos: 0 })),
                    ..retry(ids(1))
                },
            ),
        ];
        for (field, request) in cases {
            let error = retry_jobs(request, &ClusterSettings::DEFAULT).expect_err(field);
            assert_eq!(error.field(), Some(field), "{error}");
        }
    }

    #[test]
    fn only_dead_jobs_are_discarded() {
        let discard = |state| {
            let filter = Some(v1::JobFilter { state, ..of_type() });
            discard_jobs(v1::DiscardJobsRequest { filter, ..Default::default() }, &ClusterSettings::DEFAULT)
        };
        assert!(discard(0).is_ok() && discard(5).is_ok());
        assert_eq!(discard(3).unwrap_err().field(), Some("filter.state"));
    }
}
