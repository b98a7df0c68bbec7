//! `DeleteSchedule`: deletes a schedule; its jobs stay.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{is_own, of_schedule};
use crate::api::{
    check,
    verbs::{Answer, Call, Verb},
};

/// The call `DeleteSchedule`.
pub(crate) struct DeleteSchedule;

impl Verb for DeleteSchedule {
    const RPC: Rpc = Rpc::DeleteSchedule;
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    type Request = v1::DeleteScheduleRequest;
    type Response = v1::DeleteScheduleResponse;
    /// Name of the schedule.
    type Args = String;

    fn check(request: v1::DeleteScheduleRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        check::schedule_name("name", &request.name)
    }

    async fn run(call: &mut Call, name: String) -> Result<v1::DeleteScheduleResponse, Error> {
        let by = call.by()?;
        let operator = &call.broker.operator;
        let schedule = operator.get_schedule(&name).await?;
        is_own(&call.caller, &schedule)?;
        operator.delete_schedule(&name, &schedule.spec.template.task_type, &by).await?;
        Ok(v1::DeleteScheduleResponse {})
    }

    async fn route(call: &Call, request: v1::DeleteScheduleRequest) -> Answer<Self> {
        let broker = of_schedule(call, &request.name).await?;
        call.in_store::<Self>(broker, request).await
    }
}
