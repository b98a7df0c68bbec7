//! Calls for operators, and for programs that manage schedules.

mod create;
mod delete;
mod get;
pub(crate) mod list;
mod pause;
mod run;
mod update;

pub(crate) use create::CreateSchedule;
pub(crate) use delete::DeleteSchedule;
pub(crate) use get::GetSchedule;
pub(crate) use list::ListSchedules;
pub(crate) use pause::{PauseSchedule, ResumeSchedule};
pub(crate) use run::RunSchedule;
pub(crate) use update::UpdateSchedule;

use howdah_core::{error::Error, job::schedule::Schedule};
use howdah_engine::{
    access::{Caller, Operation},
    broker::SharedBroker,
    operate::no_schedule,
};
use howdah_proto::v1;

use super::Call;
use crate::{
    api::{permit, render},
    stores::ConfiguredStore,
};

/// Maximum number of planned times in a response with one schedule.
pub(crate) const NEXT_TIMES: usize = 10;

fn shown(schedule: Schedule) -> Option<v1::Schedule> {
    Some(render::schedule(schedule, NEXT_TIMES))
}

/// Checks that the caller may enqueue the jobs of the schedule. If not, fails as if the schedule did not exist.
fn is_own(caller: &Caller, schedule: &Schedule) -> Result<(), Error> {
    permit::schedule(caller, &schedule.spec.template).map(drop).map_err(|_| no_schedule(&schedule.spec.name))
}

/// Returns the task type of a schedule's jobs. A new schedule is created in the home store of this type, so that firing the
/// schedule and enqueueing its job are one transaction.
fn task_type(schedule: Option<&v1::Schedule>) -> &str {
    schedule.and_then(|schedule| schedule.template.as_ref()).map_or("", |template| &template.task_type)
}

/// Finds the store of a schedule by its name. Returns the primary store if no store has the schedule. Fails if an unreachable
/// store may have it.
async fn of_schedule<'a>(call: &'a Call, name: &str) -> Result<&'a SharedBroker, Error> {
    if let Some(broker) = call.named_broker()? {
        return Ok(broker);
    }
    // Ignores schedules whose jobs the caller may neither read nor enqueue, as if they did not exist.
    let is_seen = |schedule: &Schedule| {
        let task_type = &schedule.spec.template.task_type;
        permit::may(&call.caller, Operation::Read, task_type)
            || permit::may(&call.caller, Operation::Enqueue, task_type)
    };
    let mut found: Vec<&ConfiguredStore> = Vec::new();
    let mut unreachable = None;
    for store in call.stores.all() {
        let served = match store.reachable() {
            Ok(served) => served,
            Err(error) => {
                unreachable = Some(error);
                continue;
            }
        };
        match served.broker.operator.get_schedule(name).await {
            Ok(schedule) if is_seen(&schedule) => found.push(store),
            Ok(_) | Err(Error::NotFound(_)) => {}
            Err(error) => unreachable = Some(error),
        }
    }
    match unreachable {
        Some(unreachable) if found.is_empty() => Err(unreachable),
        _ => call.only_found(&found, "name", "is the name of a schedule"),
    }
}
