//! `GetResults`: the results of the dependencies of a job.

use crate::api::verbs::prelude::*;

/// Maximum number of dependencies in a page.
const PAGE: usize = 1_000;

/// A query for a page of results.
#[derive(Debug)]
pub(crate) struct ResultsQuery {
    id: i64,
    start: usize,
}

impl Verb for GetResults {
    const RULE: Rule = Rule::TypesEither(Operation::Work, Operation::Payload);
    const ENTRY_BYTES: usize = 256;

    type Args = ResultsQuery;

    fn check(request: v1::GetResultsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<ResultsQuery, Error> {
        // A job has dependencies by id and by local name.
        let most = 2 * cluster.batch as i64;
        let start = numbers::within("start", i64::from(request.start), 0..=most)?;
        Ok(ResultsQuery { id: request.id, start: start as usize })
    }

    fn answer_bytes(_: &ResultsQuery, cluster: &ClusterSettings) -> usize {
        answer::page_bytes(PAGE / 8, cluster, true)
    }

    async fn run(call: &mut Call, query: ResultsQuery) -> Result<v1::GetResultsResponse, Error> {
        let ResultsQuery { id, start } = query;
        let dependent = call.broker.operator.dependent(id).await?;
        let dependent = dependent.filter(|dependent| permit::may_see_results(&call.caller, &dependent.task_type));
        let dependent = dependent.ok_or_else(|| permit::no_job(id))?;
        let ids = dependent.options.after.get(start..).unwrap_or_default();
        let results = call.broker.operator.results_of(&ids[..ids.len().min(PAGE)]).await?;
        let next = start + results.len();
        Ok(v1::GetResultsResponse {
            results: render::dependencies(results, &dependent.options),
            next_start: if next < dependent.options.after.len() { next as i32 } else { 0 },
        })
    }

    async fn route(call: &Call, request: v1::GetResultsRequest) -> Answer<Self> {
        call.follow::<Self>(request.id, |id| v1::GetResultsRequest { id, ..request }).await
    }

    fn entries(response: &v1::GetResultsResponse) -> usize {
        response.results.len()
    }
}
