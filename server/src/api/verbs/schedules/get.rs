//! `GetSchedule`: one schedule with its next planned times.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::{
    access::{Operation, Rule},
    operate::no_schedule,
};
use howdah_proto::{Rpc, v1};

use super::{of_schedule, shown};
use crate::api::{
    check, permit,
    verbs::{Answer, Call, Verb},
};

/// The call `GetSchedule`.
pub(crate) struct GetSchedule;

impl Verb for GetSchedule {
    const RPC: Rpc = Rpc::GetSchedule;
    const RULE: Rule = Rule::Types(Operation::Read);

    type Request = v1::GetScheduleRequest;
    type Response = v1::GetScheduleResponse;
    /// Name of the schedule.
    type Args = String;

    fn check(request: v1::GetScheduleRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        check::schedule_name("name", &request.name)
    }

    async fn run(call: &mut Call, name: String) -> Result<v1::GetScheduleResponse, Error> {
        let schedule = call.broker.operator.get_schedule(&name).await?;
        if !permit::may(&call.caller, Operation::Read, &schedule.spec.template.task_type) {
            return Err(no_schedule(&name));
        }
        Ok(v1::GetScheduleResponse { schedule: shown(permit::seen_schedule(&call.caller, schedule)) })
    }

    async fn route(call: &Call, request: v1::GetScheduleRequest) -> Answer<Self> {
        let broker = of_schedule(call, &request.name).await?;
        call.in_store::<Self>(broker, request).await
    }
}
