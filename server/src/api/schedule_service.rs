//! `ScheduleService`: create, update, get, list, delete, pause, resume and run schedules.

use howdah_proto::{Rpc, v1};
use tonic::{Request, Response, Status};

use super::{actor::actor, answer, authenticate::caller, check, pace, page_token, pages::Pages, permit, render};
use crate::{
    access::{Caller, Operation},
    broker::SharedBroker,
    error::Error,
    job::{RequestKey, schedule::Schedule},
    operate::{no_schedule, taken_schedule},
    store::SchedulePage,
};

/// Number of planned times in a response with one schedule.
pub(crate) const NEXT_TIMES: usize = 10;

/// Service for operators and for programs that manage schedules.
pub(super) struct ScheduleService {
    broker: SharedBroker,
}

impl ScheduleService {
    pub(super) fn new(broker: SharedBroker) -> Self {
        Self { broker }
    }

    /// Page of schedules that the caller may read. The last one is a schedule that the caller may read, because the token of the
    /// next page contains its name.
    async fn visible(&self, caller: &Caller, mut after: String, page_size: usize) -> Result<SchedulePage, Error> {
        let operator = &self.broker.operator;
        if caller.may_everywhere(Operation::Read) {
            return operator.list_schedules(&after, page_size).await;
        }
        loop {
            let mut page = operator.list_schedules(&after, check::schedule::MAX_PAGE).await?;
            let last = page.schedules.last().map(|schedule| schedule.spec.name.clone());
            page.schedules.retain(|schedule| permit::may(caller, Operation::Read, &schedule.spec.template.task_type));
            page.more |= page.schedules.len() > page_size;
            page.schedules.truncate(page_size);
            match last {
                Some(last) if page.more && page.schedules.is_empty() => after = last,
                _ => return Ok(page),
            }
        }
    }
}

/// Checks that the caller may enqueue the jobs of the schedule. Otherwise the schedule does not exist for this caller.
fn is_own(caller: &Caller, schedule: &Schedule) -> Result<(), Error> {
    permit::schedule(caller, &schedule.spec.template).map(drop).map_err(|_| no_schedule(&schedule.spec.name))
}

fn shown(schedule: Schedule) -> Option<v1::Schedule> {
    Some(render::schedule(schedule, NEXT_TIMES))
}

howdah_proto::schedule_service!(ScheduleService);

impl ScheduleService {
    pub(super) async fn create_schedule(
        &self,
        request: Request<v1::CreateScheduleRequest>,
    ) -> Result<Response<v1::CreateScheduleResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::CreateSchedule)?);
        let (spec, paused) = check::schedule(request.into_inner().schedule, &self.broker.cluster())?;
        let types = permit::schedule(&caller, &spec.template)?;
        self.broker.operator.create_types(&types, &by).await?;
        let schedule = shown(self.broker.operator.create_schedule(spec, paused, &by).await?);
        Ok(Response::new(v1::CreateScheduleResponse { schedule }))
    }

    pub(super) async fn update_schedule(
        &self,
        request: Request<v1::UpdateScheduleRequest>,
    ) -> Result<Response<v1::UpdateScheduleResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::UpdateSchedule)?);
        let request = request.into_inner();
        let (spec, paused) = check::schedule(request.schedule, &self.broker.cluster())?;
        let types = permit::schedule(&caller, &spec.template)?;
        self.broker.operator.create_types(&types, &by).await?;
        let allow_missing = request.allow_missing;
        let check = |old: &Schedule| match is_own(&caller, old) {
            Ok(()) => Ok(()),
            // Returns the same error as a create, which reveals only that the name is taken.
            Err(_) if allow_missing => Err(taken_schedule(&old.spec.name)),
            Err(missing) => Err(missing),
        };
        let schedule = self.broker.operator.update_schedule(spec, paused, allow_missing, &check, &by).await?;
        let schedule = shown(schedule);
        Ok(Response::new(v1::UpdateScheduleResponse { schedule }))
    }

    pub(super) async fn get_schedule(
        &self,
        request: Request<v1::GetScheduleRequest>,
    ) -> Result<Response<v1::GetScheduleResponse>, Status> {
        let name = check::schedule_name("name", &request.get_ref().name)?;
        let caller = caller(&request)?;
        let schedule = self.broker.operator.get_schedule(&name).await?;
        if !permit::may(&caller, Operation::Read, &schedule.spec.template.task_type) {
            return Err(no_schedule(&name).into());
        }
        let schedule = shown(permit::seen_schedule(&caller, schedule));
        Ok(Response::new(v1::GetScheduleResponse { schedule }))
    }

    pub(super) async fn list_schedules(
        &self,
        request: Request<v1::ListSchedulesRequest>,
    ) -> Result<Response<v1::ListSchedulesResponse>, Status> {
        let caller = caller(&request)?;
        let bytes = answer::page_bytes(0, &self.broker.cluster(), true);
        let room = answer::room(&self.broker.answers, &request, bytes).await?;
        let mut request = request.into_inner();
        let pages = Pages::open(&self.broker.page_token_key, caller.principal(), &mut request)?;
        let (after, page_size) = check::list_schedules(&request)?;
        let page = self.visible(&caller, after, page_size).await?;
        let last = page.schedules.last().filter(|_| page.more);
        let next_page_token = pages.seal(last.map(|last| page_token::encode_schedule(&last.spec.name)));
        let schedules = page.schedules.into_iter();
        let schedules: Vec<_> =
            schedules.map(|schedule| render::schedule(permit::seen_schedule(&caller, schedule), 1)).collect();
        let entries = schedules.len();
        Ok(answer::with_room(v1::ListSchedulesResponse { schedules, next_page_token }, entries, room))
    }

    pub(super) async fn delete_schedule(
        &self,
        request: Request<v1::DeleteScheduleRequest>,
    ) -> Result<Response<v1::DeleteScheduleResponse>, Status> {
        let name = check::schedule_name("name", &request.get_ref().name)?;
        let by = actor(&self.broker, &request, Rpc::DeleteSchedule)?;
        let schedule = self.broker.operator.get_schedule(&name).await?;
        is_own(&caller(&request)?, &schedule)?;
        self.broker.operator.delete_schedule(&name, &schedule.spec.template.task_type, &by).await?;
        Ok(Response::new(v1::DeleteScheduleResponse {}))
    }

    pub(super) async fn pause_schedule(
        &self,
        request: Request<v1::PauseScheduleRequest>,
    ) -> Result<Response<v1::PauseScheduleResponse>, Status> {
        let name = check::schedule_name("name", &request.get_ref().name)?;
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::PauseSchedule)?);
        let check = |schedule: &Schedule| is_own(&caller, schedule);
        let schedule = self.broker.operator.pause_schedule(&name, true, &check, &by).await?;
        let schedule = shown(permit::seen_schedule(&caller, schedule));
        Ok(Response::new(v1::PauseScheduleResponse { schedule }))
    }

    pub(super) async fn resume_schedule(
        &self,
        request: Request<v1::ResumeScheduleRequest>,
    ) -> Result<Response<v1::ResumeScheduleResponse>, Status> {
        let name = check::schedule_name("name", &request.get_ref().name)?;
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::ResumeSchedule)?);
        let check = |schedule: &Schedule| is_own(&caller, schedule);
        let schedule = self.broker.operator.pause_schedule(&name, false, &check, &by).await?;
        let schedule = shown(permit::seen_schedule(&caller, schedule));
        Ok(Response::new(v1::ResumeScheduleResponse { schedule }))
    }

    pub(super) async fn run_schedule(
        &self,
        request: Request<v1::RunScheduleRequest>,
    ) -> Result<Response<v1::RunScheduleResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::RunSchedule)?);
        let (name, key) = check::run_schedule(request.into_inner(), &self.broker.cluster())?;
        let key = key.map(|key| RequestKey::name_of(caller.principal(), key));
        let check = |schedule: &Schedule| {
            is_own(&caller, schedule)?;
            pace::check_template(&caller, &schedule.spec.template)
        };
        let job = Some(render::enqueued(self.broker.operator.run_schedule(&name, key, &check, &by).await?));
        Ok(Response::new(v1::RunScheduleResponse { job }))
    }
}
