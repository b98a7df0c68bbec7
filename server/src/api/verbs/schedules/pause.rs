//! `PauseSchedule` and `ResumeSchedule`: stop and continue the firing of a schedule.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits, schedule::Schedule},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{is_own, of_schedule, shown};
use crate::api::{
    check, permit,
    verbs::{Answer, Call, Verb},
};

/// The call `PauseSchedule`.
pub(crate) struct PauseSchedule;

impl Verb for PauseSchedule {
    const RPC: Rpc = Rpc::PauseSchedule;
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    type Request = v1::PauseScheduleRequest;
    type Response = v1::PauseScheduleResponse;
    /// Name of the schedule.
    type Args = String;

    fn check(request: v1::PauseScheduleRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        check::schedule_name("name", &request.name)
    }

    async fn run(call: &mut Call, name: String) -> Result<v1::PauseScheduleResponse, Error> {
        Ok(v1::PauseScheduleResponse { schedule: set_paused(call, &name, true).await? })
    }

    async fn route(call: &Call, request: v1::PauseScheduleRequest) -> Answer<Self> {
        let broker = of_schedule(call, &request.name).await?;
        call.in_store::<Self>(broker, request).await
    }
}

/// The call `ResumeSchedule`.
pub(crate) struct ResumeSchedule;

impl Verb for ResumeSchedule {
    const RPC: Rpc = Rpc::ResumeSchedule;
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    type Request = v1::ResumeScheduleRequest;
    type Response = v1::ResumeScheduleResponse;
    /// Name of the schedule.
    type Args = String;

    fn check(request: v1::ResumeScheduleRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        check::schedule_name("name", &request.name)
    }

    async fn run(call: &mut Call, name: String) -> Result<v1::ResumeScheduleResponse, Error> {
        Ok(v1::ResumeScheduleResponse { schedule: set_paused(call, &name, false).await? })
    }

    async fn route(call: &Call, request: v1::ResumeScheduleRequest) -> Answer<Self> {
        let broker = of_schedule(call, &request.name).await?;
        call.in_store::<Self>(broker, request).await
    }
}

async fn set_paused(call: &Call, name: &str, paused: bool) -> Result<Option<v1::Schedule>, Error> {
    let by = call.by()?;
    let check = |schedule: &Schedule| is_own(&call.caller, schedule);
    let schedule = call.broker.operator.pause_schedule(name, paused, &check, &by).await?;
    Ok(shown(permit::seen_schedule(&call.caller, schedule)))
}
