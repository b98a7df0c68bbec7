//! Calls for operators, and for programs that manage schedules.

use howdah_core::job::{
    RequestKey,
    schedule::{Schedule, ScheduleSpec},
};
use howdah_engine::{
    broker::SharedBroker,
    operate::{no_schedule, taken_schedule},
    store::SchedulePage,
};

use crate::{
    api::{pace, verbs::prelude::*},
    stores::ConfiguredStore,
};

pub(crate) mod definition;

pub(crate) use definition::job_of_template;

/// Maximum number of planned times in a response with one schedule.
pub(crate) const NEXT_TIMES: usize = 10;

fn shown(schedule: Schedule) -> Option<v1::Schedule> {
    Some(definition::render(schedule, NEXT_TIMES))
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

impl Verb for CreateSchedule {
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    /// Checked request: the schedule, and whether it is paused.
    type Args = (ScheduleSpec, bool);

    fn check(request: v1::CreateScheduleRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        definition::check(request.schedule, cluster)
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

impl Verb for UpdateSchedule {
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    /// Checked request: the schedule, whether it is paused, and whether it may be created.
    type Args = (ScheduleSpec, bool, bool);

    fn check(request: v1::UpdateScheduleRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let (spec, paused) = definition::check(request.schedule, cluster)?;
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

impl Verb for GetSchedule {
    const RULE: Rule = Rule::Types(Operation::Read);

    /// Name of the schedule.
    type Args = String;

    fn check(request: v1::GetScheduleRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        definition::check_name("name", &request.name)
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

pub(crate) const PAGE: usize = 100;
pub(crate) const MAX_PAGE: usize = 1000;

impl Verb for ListSchedules {
    const RULE: Rule = Rule::Types(Operation::Read);

    /// Checked request: the last name of the previous page, and the page size.
    type Args = (String, usize);

    paged!(schedules, page_size);

    fn check(request: v1::ListSchedulesRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let after = page_token::name(&request.page_token)?;
        Ok((after, numbers::page_size(request.page_size, PAGE, MAX_PAGE)?))
    }

    fn answer_bytes(_: &Self::Args, cluster: &ClusterSettings) -> usize {
        answer::page_bytes(0, cluster, true)
    }

    async fn run(call: &mut Call, (after, page_size): Self::Args) -> Result<v1::ListSchedulesResponse, Error> {
        let page = visible(call, after, page_size).await?;
        let last = page.schedules.last().filter(|_| page.more);
        let next_page_token = last.map(|last| page_token::encode_name(&last.spec.name)).unwrap_or_default();
        let seen = |schedule| definition::render(permit::seen_schedule(&call.caller, schedule), 1);
        let schedules = page.schedules.into_iter().map(seen).collect();
        Ok(v1::ListSchedulesResponse { schedules, next_page_token })
    }

    async fn route(call: &Call, request: v1::ListSchedulesRequest) -> Answer<Self> {
        call.pages::<Self>(call.concerned("").await?, request).await
    }
}

merged!(ListSchedules: of_store schedules);

/// Returns a page of the schedules that the caller may read. The page token contains the last name of the page, so it reveals
/// no other schedule.
async fn visible(call: &Call, mut after: String, page_size: usize) -> Result<SchedulePage, Error> {
    let operator = &call.broker.operator;
    if call.caller.may_everywhere(Operation::Read) {
        return operator.list_schedules(&after, page_size).await;
    }
    loop {
        let mut page = operator.list_schedules(&after, MAX_PAGE).await?;
        let last = page.schedules.last().map(|schedule| schedule.spec.name.clone());
        page.schedules.retain(|schedule| permit::may(&call.caller, Operation::Read, &schedule.spec.template.task_type));
        page.more |= page.schedules.len() > page_size;
        page.schedules.truncate(page_size);
        match last {
            Some(last) if page.more && page.schedules.is_empty() => after = last,
            _ => return Ok(page),
        }
    }
}

macro_rules! pauses {
    ($($verb:ident -> $response:ident: $paused:expr;)*) => {
        $(
            impl Verb for $verb {
                const RULE: Rule = Rule::Types(Operation::Enqueue);

                /// Name of the schedule.
                type Args = String;

                fn check(request: Self::Request, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
                    definition::check_name("name", &request.name)
                }

                async fn run(call: &mut Call, name: String) -> Result<v1::$response, Error> {
                    Ok(v1::$response { schedule: set_paused(call, &name, $paused).await? })
                }

                async fn route(call: &Call, request: Self::Request) -> Answer<Self> {
                    let broker = of_schedule(call, &request.name).await?;
                    call.in_store::<Self>(broker, request).await
                }
            }
        )*
    };
}

pauses! {
    PauseSchedule -> PauseScheduleResponse: true;
    ResumeSchedule -> ResumeScheduleResponse: false;
}

async fn set_paused(call: &Call, name: &str, paused: bool) -> Result<Option<v1::Schedule>, Error> {
    let by = call.by()?;
    let check = |schedule: &Schedule| is_own(&call.caller, schedule);
    let schedule = call.broker.operator.pause_schedule(name, paused, &check, &by).await?;
    Ok(shown(permit::seen_schedule(&call.caller, schedule)))
}

impl Verb for RunSchedule {
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    /// Checked request: the name of the schedule, and the request key.
    type Args = (String, Option<String>);

    fn check(request: v1::RunScheduleRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let name = definition::check_name("name", &request.name)?;
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

impl Verb for DeleteSchedule {
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    /// Name of the schedule.
    type Args = String;

    fn check(request: v1::DeleteScheduleRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        definition::check_name("name", &request.name)
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
