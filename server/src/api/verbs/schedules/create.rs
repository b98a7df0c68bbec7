//! `CreateSchedule`: creates a schedule.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits, schedule::ScheduleSpec},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{shown, task_type};
use crate::api::{
    check, permit,
    verbs::{Answer, Call, Verb},
};

/// The call `CreateSchedule`.
pub(crate) struct CreateSchedule;

impl Verb for CreateSchedule {
    const RPC: Rpc = Rpc::CreateSchedule;
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    type Request = v1::CreateScheduleRequest;
    type Response = v1::CreateScheduleResponse;
    /// Checked request: the schedule, and whether it is paused.
    type Args = (ScheduleSpec, bool);

    fn check(request: v1::CreateScheduleRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        check::schedule(request.schedule, cluster)
    }

    async fn run(call: &mut Call, (spec, paused): Self::Args) -> Result<v1::CreateScheduleResponse, Error> {
        let by = call.by()?;
        let types = permit::schedule(&call.caller, &spec.template)?;
        let operator = &call.broker.operator;
        operator.create_types(&types, &by).await?;
        let schedule = shown(operator.create_schedule(spec, paused, &by).await?);
        Ok(v1::CreateScheduleResponse { schedule })
    }

    async fn route(call: &Call, request: v1::CreateScheduleRequest) -> Answer<Self> {
        let broker = call.named_or_home(task_type(request.schedule.as_ref())).await?;
        call.in_store::<Self>(broker, request).await
    }
}
