//! `UpdateSchedule`: replaces the definition of a schedule, or creates it (`allow_missing`).

use howdah_core::{
    error::Error,
    job::{
        ClusterSettings, Limits,
        schedule::{Schedule, ScheduleSpec},
    },
};
use howdah_engine::{
    access::{Operation, Rule},
    operate::taken_schedule,
};
use howdah_proto::{Rpc, v1};

use super::{is_own, of_schedule, shown, task_type};
use crate::api::{
    check, permit,
    verbs::{Answer, Call, Verb},
};

/// The call `UpdateSchedule`.
pub(crate) struct UpdateSchedule;

impl Verb for UpdateSchedule {
    const RPC: Rpc = Rpc::UpdateSchedule;
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    type Request = v1::UpdateScheduleRequest;
    type Response = v1::UpdateScheduleResponse;
    /// Checked request: the schedule, whether it is paused, and whether it may be created.
    type Args = (ScheduleSpec, bool, bool);

    fn check(request: v1::UpdateScheduleRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let (spec, paused) = check::schedule(request.schedule, cluster)?;
        Ok((spec, paused, request.allow_missing))
    }

    async fn run(
        call: &mut Call,
        (spec, paused, allow_missing): Self::Args,
    ) -> Result<v1::UpdateScheduleResponse, Error> {
        let by = call.by()?;
        let types = permit::schedule(&call.caller, &spec.template)?;
        let operator = &call.broker.operator;
        operator.create_types(&types, &by).await?;
        let check = |old: &Schedule| match is_own(&call.caller, old) {
            Ok(()) => Ok(()),
            // Returns the same error as `CreateSchedule`, which reveals only that the name is taken.
            Err(_) if allow_missing => Err(taken_schedule(&old.spec.name)),
            Err(missing) => Err(missing),
        };
        let schedule = shown(operator.update_schedule(spec, paused, allow_missing, &check, &by).await?);
        Ok(v1::UpdateScheduleResponse { schedule })
    }

    async fn route(call: &Call, request: v1::UpdateScheduleRequest) -> Answer<Self> {
        let schedule = request.schedule.as_ref();
        let name = schedule.map_or("", |schedule| &schedule.name);
        let broker = if request.allow_missing && !exists(call, name).await? {
            call.named_or_home(task_type(schedule)).await?
        } else {
            of_schedule(call, name).await?
        };
        call.in_store::<Self>(broker, request).await
    }
}

/// Whether any store has a schedule of this name. Fails if an unreachable store may have it.
async fn exists(call: &Call, name: &str) -> Result<bool, Error> {
    for store in call.stores.all() {
        match store.reachable()?.broker.operator.get_schedule(name).await {
            Ok(_) => return Ok(true),
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
