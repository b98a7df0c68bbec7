//! `ListJobs`: the jobs of a type or of all types, in the order in which they run, by their attempts, or by their failures.

use std::cmp::Reverse;

use howdah_core::job::JobState;
use howdah_engine::operate::{ListOrder, ListQuery, jobs::LIST_BYTES};
use prost::Message as _;

use crate::api::{
    check::{
        job_filter::job_conditions,
        job_filter::{error_group, of_worker, state},
    },
    verbs::prelude::*,
};

pub(crate) const PAGE: usize = 100;
pub(crate) const MAX_PAGE: usize = 1000;

impl Verb for ListJobs {
    const RULE: Rule = Rule::Types(Operation::Read);

    type Args = ListQuery;

    paged!(jobs, page_size);

    fn check(request: v1::ListJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<ListQuery, Error> {
        let conditions = job_conditions("conditions", request.conditions.clone(), cluster)?;
        let state = of_worker("conditions", &conditions, state(request.state)?, &JobState::ALL)?;
        let from = page_token::job(&request.page_token)?;
        if let (Some(state), Some(from)) = (state, from)
            && from.state != state
        {
            let problem = format!(
                "continues a list of {} jobs, but the request asks for {} jobs; use the same state, or leave page_token out",
                from.state.name(),
                state.name()
            );
            return Err(Error::invalid("page_token", problem));
        }
        let error_group = error_group("error_group", &request.error_group)?;
        if error_group.is_some() && state != Some(JobState::Dead) {
            return Err(Error::invalid("error_group", "is for dead jobs only; set state to JOB_STATE_DEAD"));
        }
        let order = order(&request, state)?;
        if order != ListOrder::Run && !conditions.is_empty() {
            return Err(Error::invalid("conditions", "is set together with order; leave one of them out"));
        }
        if request.task_type.is_empty()
            && (order == ListOrder::Attempts || (error_group.is_some() && order == ListOrder::Run))
        {
            return Err(Error::invalid(
                "task_type",
                "is empty, but this order or error_group needs a task type; set it",
            ));
        }
        Ok(ListQuery {
            task_type: optional_task_type("task_type", &request.task_type)?,
            state,
            page_size: numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
            from,
            payload: request.include_payload,
            error_group,
            conditions,
            order,
        })
    }

    fn permit(caller: &Caller, query: &ListQuery) -> Result<(), Error> {
        permit::one_or_all(caller, Operation::Read, query.task_type.as_ref())?;
        if query.payload { permit::one_or_all(caller, Operation::Payload, query.task_type.as_ref()) } else { Ok(()) }
    }

    fn answer_bytes(query: &ListQuery, cluster: &ClusterSettings) -> usize {
        answer::page_bytes(query.page_size, cluster, query.payload)
    }

    async fn run(call: &mut Call, query: ListQuery) -> Result<v1::ListJobsResponse, Error> {
        let page = call.broker.operator.list_jobs(query).await?;
        Ok(v1::ListJobsResponse {
            jobs: page.jobs.into_iter().map(render::job).collect(),
            next_page_token: page.next.map(page_token::encode_job).unwrap_or_default(),
            partial: page.look.partial,
            // May count jobs of other types, so callers who may not read every type get 0.
            scanned_count: if call.caller.may_everywhere(Operation::Read) { page.look.scanned_count } else { 0 },
            has_more: page.look.has_more,
        })
    }

    async fn route(call: &Call, request: v1::ListJobsRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        if request.order() != v1::JobOrder::Attempts {
            return call.pages::<Self>(stores, request).await;
        }
        let size = request.page_size;
        Ok(call.each::<Self>(stores, request).await?.map(|all| most_attempts(all, size)))
    }
}

impl Merge for ListJobs {
    fn merge(all: &mut v1::ListJobsResponse, part: v1::ListJobsResponse, _: &str) {
        all.jobs.extend(part.jobs);
        all.partial |= part.partial;
        all.scanned_count += part.scanned_count;
        all.has_more |= part.has_more;
    }
}

/// Returns the order of the jobs, and checks that the request allows this order.
fn order(request: &v1::ListJobsRequest, state: Option<JobState>) -> Result<ListOrder, Error> {
    match v1::JobOrder::try_from(request.order) {
        Err(_) => Err(Error::invalid("order", format!("is the unknown value {}", request.order))),
        Ok(v1::JobOrder::Unspecified) => Ok(ListOrder::Run),
        Ok(v1::JobOrder::Failure)
            if !state.is_none_or(|state| matches!(state, JobState::Dead | JobState::Scheduled)) =>
        {
            Err(Error::invalid("order", "by failure is for dead and scheduled jobs; set one of these states, or none"))
        }
        Ok(v1::JobOrder::Failure) => Ok(ListOrder::Failure),
        Ok(v1::JobOrder::Attempts) if state.is_some_and(JobState::is_finished) => {
            Err(Error::invalid("order", "by attempts is for jobs that are not finished; set another state, or none"))
        }
        Ok(v1::JobOrder::Attempts) if !request.error_group.is_empty() => {
            Err(Error::invalid("order", "by attempts is not for jobs of one error group; leave error_group out"))
        }
        Ok(v1::JobOrder::Attempts) if !request.page_token.is_empty() => {
            Err(Error::invalid("page_token", "is set, but the order by attempts has one page only; leave it out"))
        }
        Ok(v1::JobOrder::Attempts) => Ok(ListOrder::Attempts),
    }
}

/// Merges pages of several stores, ordered by attempts, into one page, which has at most `page_size` jobs and [`LIST_BYTES`]
/// bytes.
fn most_attempts(mut all: v1::ListJobsResponse, page_size: i32) -> v1::ListJobsResponse {
    all.jobs.sort_by_key(|job| (Reverse(job.attempt), job.id));
    let requested_size = usize::try_from(page_size).unwrap_or_default();
    let (most, mut bytes) = (if requested_size == 0 { PAGE } else { requested_size.min(MAX_PAGE) }, 0);
    let mut fits = |job: &v1::Job| {
        bytes += job.encoded_len() as i64;
        bytes < LIST_BYTES
    };
    let fitting = all.jobs.iter().take(most).take_while(|job| fits(job)).count().max(1);
    all.has_more |= all.jobs.len() > fitting;
    all.jobs.truncate(fitting);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_core::job::PagePosition;

    fn request() -> v1::ListJobsRequest {
        v1::ListJobsRequest { task_type: "a".into(), ..Default::default() }
    }

    fn list_jobs(request: &v1::ListJobsRequest) -> Result<ListQuery, Error> {
        ListJobs::check(request.clone(), &ClusterSettings::DEFAULT, &Limits::default())
    }

    #[test]
    fn an_empty_request_lists_the_jobs_of_all_types_as_they_run() {
        let query = list_jobs(&v1::ListJobsRequest::default()).unwrap();
        assert_eq!((query.task_type, query.state, query.order), (None, None, ListOrder::Run));
        let query = list_jobs(&request()).unwrap();
        assert_eq!((query.state, query.page_size, query.from, query.payload), (None, 100, None, false));
        let query = list_jobs(&v1::ListJobsRequest { state: 5, ..request() }).unwrap();
        assert_eq!((query.state, query.order), (Some(JobState::Dead), ListOrder::Run));
        let order = |order| list_jobs(&v1::ListJobsRequest { order, ..request() }).unwrap().order;
        assert_eq!([order(1), order(2)], [ListOrder::Attempts, ListOrder::Failure]);
        let group = v1::ListJobsRequest { error_group: "e".into(), state: 5, order: 2, ..Default::default() };
        assert_eq!(list_jobs(&group).unwrap().error_group.as_deref(), Some("e"));
    }

    #[test]
    fn the_error_names_the_invalid_field_of_list_jobs() {
        let dead = page_token::encode_job(PagePosition { state: JobState::Dead, rank: 0, id: 1 });
        let conditions = |worker_id: &str| {
            Some(v1::JobConditions { tag: "t".into(), worker_id: worker_id.into(), ..Default::default() })
        };
        let of_worker = conditions("0123456789abcdef");
        let cases = [
            ("conditions", v1::ListJobsRequest { conditions: conditions(""), order: 1, ..request() }),
            ("conditions.worker_id", v1::ListJobsRequest { conditions: conditions("x"), ..request() }),
            ("conditions.worker_id", v1::ListJobsRequest { conditions: of_worker, state: 1, ..request() }),
            ("task_type", v1::ListJobsRequest { task_type: "a b".into(), ..Default::default() }),
            ("task_type", v1::ListJobsRequest { order: 1, ..Default::default() }),
            ("task_type", v1::ListJobsRequest { state: 5, error_group: "e".into(), ..Default::default() }),
            ("order", v1::ListJobsRequest { order: 2, state: 1, ..request() }),
            ("order", v1::ListJobsRequest { order: 2, state: 6, ..request() }),
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
            ("order", v1::ListJobsRequest { order: 3, ..request() }),
            ("order", v1::ListJobsRequest { order: 1, state: 6, ..request() }),
            ("order", v1::ListJobsRequest { order: 1, state: 5, error_group: "e".into(), ..request() }),
            ("page_token", v1::ListJobsRequest { order: 1, page_token: dead, ..request() }),
        ];
        for (field, request) in cases {
            assert_eq!(list_jobs(&request).expect_err(field).field(), Some(field));
        }
    }

    fn job(id: i64, attempt: u32, bytes: usize) -> v1::Job {
        v1::Job { id, attempt, payload: vec![0; bytes].into(), ..v1::Job::default() }
    }

    #[test]
    fn jobs_with_the_most_attempts_of_all_stores_come_first_up_to_the_page_size() {
        let part = |jobs| v1::ListJobsResponse { jobs, ..Default::default() };
        let mut all = v1::ListJobsResponse::default();
        ListJobs::merge(&mut all, part(vec![job(1, 5, 0), job(2, 2, 0)]), "main");
        let other = part(vec![job(11, 7, 0), job(12, 2, 0)]);
        ListJobs::merge(&mut all, v1::ListJobsResponse { partial: true, scanned_count: 3, ..other }, "other");
        let ids = |all: &v1::ListJobsResponse| all.jobs.iter().map(|job| job.id).collect::<Vec<_>>();
        let all = most_attempts(all, 0);
        assert_eq!(ids(&all), [11, 1, 2, 12]);
        assert_eq!((all.partial, all.scanned_count, all.has_more), (true, 3, false));
        let three = most_attempts(all, 3);
        assert_eq!((ids(&three), three.has_more), (vec![11, 1, 2], true));
    }

    #[test]
    fn a_page_merged_from_several_stores_keeps_the_byte_limit_of_a_page() {
        let page = |jobs| most_attempts(v1::ListJobsResponse { jobs, ..Default::default() }, 100);
        let full = page((1..=4).map(|id| job(id, 1, 1 << 20)).collect());
        assert_eq!((full.jobs.len(), full.has_more), (2, true));
        let large = page(vec![job(1, 1, 4 << 20)]);
        assert_eq!((large.jobs.len(), large.has_more), (1, false));
    }
}
