//! `RetryJobs`: makes dead jobs, and jobs that wait for their next attempt, ready again.

use std::time::{Duration, SystemTime};

use howdah_engine::{
    operate::{RETRY_STATES, RetryQuery, Selection},
    store::RetryStart,
};
use howdah_proto::v1::retry_jobs_request::Start;

use crate::api::{check::job_filter::selection, pace, verbs::prelude::*};

impl Verb for RetryJobs {
    const RULE: Rule = Rule::Types(Operation::Operate);
    const ENTRY_BYTES: usize = 0;
    const ANSWER_BYTES: usize = answer::SHORT;

    type Args = RetryQuery;

    paged!(retried_ids);

    fn check(request: v1::RetryJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<RetryQuery, Error> {
        let selection = selection(request.filter, &request.page_token, &RETRY_STATES, cluster)?;
        let start = match request.start {
            None => RetryStart::Now,
            Some(Start::RunAt(at)) => RetryStart::At(time::run_at("run_at", at, SystemTime::now(), cluster.max_delay)?),
            Some(Start::Delay(delay)) => {
                let delay = time::duration("delay", delay, &(Duration::ZERO..=cluster.max_delay))?;
                RetryStart::After(delay.as_millis() as i64)
            }
        };
        if let Some(payload) = &request.payload {
            text::short("payload", payload, cluster.payload_bytes)?;
            if !matches!(&selection, Selection::Ids(jobs) if jobs.ids.len() == 1) {
                return Err(Error::invalid("payload", "is for a single job; set filter.ids to exactly one id"));
            }
        }
        // The payload is copied, because a slice would keep the whole message in memory.
        let payload = request.payload.map(|payload| bytes::Bytes::copy_from_slice(&payload));
        Ok(RetryQuery { selection, start, payload })
    }

    async fn run(call: &mut Call, mut query: RetryQuery) -> Result<v1::RetryJobsResponse, Error> {
        let by = call.by()?;
        query.selection = permit::own_selection(&call.broker, &call.caller, query.selection).await?;
        if query.payload.is_some()
            && let Selection::Ids(jobs) = &query.selection
        {
            permit::new_payload(&call.broker, &call.caller, &jobs.ids).await?;
        }
        pace::may(&call.caller)?;
        let answer = call.broker.operator.retry_jobs(query, &by).await?;
        pace::force_take(&call.caller, answer.retried.len() + answer.revived.len(), 0);
        // The retry may have revived dependent jobs that the caller may not operate. The response does not contain their ids.
        let revived_ids = permit::own_jobs(&call.broker, &call.caller, answer.revived.into()).await?.ids;
        Ok(v1::RetryJobsResponse {
            retried_ids: answer.retried,
            key_held_ids: answer.key_held,
            revived_ids,
            next_page_token: answer.next.map(page_token::encode_job).unwrap_or_default(),
        })
    }

    async fn route(call: &Call, request: v1::RetryJobsRequest) -> Answer<Self> {
        call.filtered::<Self>(request, |request| &mut request.filter).await
    }
}

merged!(RetryJobs: retried_ids, key_held_ids, revived_ids);

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_core::job::{JobState, PagePosition};

    fn of_type() -> v1::JobFilter {
        v1::JobFilter { task_type: "a".into(), ..Default::default() }
    }

    fn ids(count: usize) -> v1::JobFilter {
        v1::JobFilter { ids: vec![-1; count], ..Default::default() }
    }

    fn retry(filter: v1::JobFilter) -> v1::RetryJobsRequest {
        v1::RetryJobsRequest { filter: Some(filter), ..Default::default() }
    }

    fn retry_jobs(request: v1::RetryJobsRequest, cluster: &ClusterSettings) -> Result<RetryQuery, Error> {
        RetryJobs::check(request, cluster, &Limits::default())
    }

    #[test]
    fn the_error_names_the_missing_or_contradictory_field_of_retry_jobs() {
        let dead = page_token::encode_job(PagePosition { state: JobState::Dead, rank: 0, id: 1 });
        let ready = page_token::encode_job(PagePosition { state: JobState::Ready, rank: 0, id: 1 });
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
}
