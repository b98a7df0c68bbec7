//! `GetJob`: one job, from the database or from the archive.

use crate::api::verbs::prelude::*;

impl Verb for GetJob {
    const RULE: Rule = Rule::Types(Operation::Read);

    type Args = i64;

    fn check(request: v1::GetJobRequest, _: &ClusterSettings, _: &Limits) -> Result<i64, Error> {
        Ok(request.id)
    }

    fn answer_bytes(_: &i64, cluster: &ClusterSettings) -> usize {
        answer::page_bytes(1, cluster, true)
    }

    async fn run(call: &mut Call, id: i64) -> Result<v1::GetJobResponse, Error> {
        let job = call.broker.operator.get_job(id).await?;
        let job = job.and_then(|job| permit::seen(&call.caller, job)).ok_or_else(|| permit::no_job(id))?;
        Ok(v1::GetJobResponse { job: Some(render::job(job)) })
    }

    async fn route(call: &Call, request: v1::GetJobRequest) -> Answer<Self> {
        call.follow::<Self>(request.id, |id| v1::GetJobRequest { id }).await
    }

    fn entries(_: &v1::GetJobResponse) -> usize {
        1
    }
}
