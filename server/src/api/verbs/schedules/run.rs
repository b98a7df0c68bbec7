//! `RunSchedule`: enqueues a job of a schedule now, in addition to the planned jobs.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits, RequestKey, schedule::Schedule},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{is_own, of_schedule};
use crate::api::{
    check::{self, text},
    pace, render,
    verbs::{Answer, Call, Verb},
};

/// The call `RunSchedule`.
pub(crate) struct RunSchedule;

impl Verb for RunSchedule {
    const RPC: Rpc = Rpc::RunSchedule;
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    type Request = v1::RunScheduleRequest;
    type Response = v1::RunScheduleResponse;
    /// Checked request: the name of the schedule, and the request key.
    type Args = (String, Option<String>);

    fn check(request: v1::RunScheduleRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let name = check::schedule_name("name", &request.name)?;
        Ok((name, text::optional("request_key", request.request_key, cluster.key_bytes)?))
    }

    async fn run(call: &mut Call, (name, key): Self::Args) -> Result<v1::RunScheduleResponse, Error> {
        let by = call.by()?;
        let key = key.map(|key| RequestKey::name_of(call.caller.principal(), key));
        let check = |schedule: &Schedule| {
            is_own(&call.caller, schedule)?;
            pace::check_template(&call.caller, &schedule.spec.template)
        };
        let job = call.broker.operator.run_schedule(&name, key, &check, &by).await?;
        Ok(v1::RunScheduleResponse { job: Some(render::enqueued(job)) })
    }

    async fn route(call: &Call, request: v1::RunScheduleRequest) -> Answer<Self> {
        let broker = of_schedule(call, &request.name).await?;
        call.in_store::<Self>(broker, request).await
    }
}
