//! `ScheduleService`: create, update, get, list, delete, pause, resume and run schedules.

use howdah_proto::v1::{self, schedule_service_server};
use tonic::{Request, Response, Status, async_trait};

use super::{answer, check, page_token, pages::Pages, render};
use crate::{broker::SharedBroker, job::schedule::Schedule};

/// The next times in an answer about one schedule.
pub(crate) const NEXT_TIMES: usize = 10;

/// The service of operators and of programs that manage schedules.
pub(super) struct ScheduleService {
    broker: SharedBroker,
}

impl ScheduleService {
    pub(super) fn new(broker: SharedBroker) -> Self {
        Self { broker }
    }
}

fn shown(schedule: Schedule) -> Option<v1::Schedule> {
    Some(render::schedule(schedule, NEXT_TIMES))
}

#[async_trait]
impl schedule_service_server::ScheduleService for ScheduleService {
    async fn create_schedule(
        &self,
        request: Request<v1::CreateScheduleRequest>,
    ) -> Result<Response<v1::CreateScheduleResponse>, Status> {
        let (spec, paused) = check::schedule(request.into_inner().schedule, &self.broker.cluster())?;
        let schedule = shown(self.broker.operator.create_schedule(spec, paused).await?);
        Ok(Response::new(v1::CreateScheduleResponse { schedule }))
    }

    async fn update_schedule(
        &self,
        request: Request<v1::UpdateScheduleRequest>,
    ) -> Result<Response<v1::UpdateScheduleResponse>, Status> {
        let request = request.into_inner();
        let (spec, paused) = check::schedule(request.schedule, &self.broker.cluster())?;
        let schedule = shown(self.broker.operator.update_schedule(spec, paused, request.allow_missing).await?);
        Ok(Response::new(v1::UpdateScheduleResponse { schedule }))
    }

    async fn get_schedule(
        &self,
        request: Request<v1::GetScheduleRequest>,
    ) -> Result<Response<v1::GetScheduleResponse>, Status> {
        let name = check::schedule_name("name", &request.get_ref().name)?;
        let schedule = shown(self.broker.operator.get_schedule(&name).await?);
        Ok(Response::new(v1::GetScheduleResponse { schedule }))
    }

    async fn list_schedules(
        &self,
        request: Request<v1::ListSchedulesRequest>,
    ) -> Result<Response<v1::ListSchedulesResponse>, Status> {
        let bytes = answer::page_bytes(0, &self.broker.cluster(), true);
        let room = answer::room(&self.broker.answers, &request, bytes).await?;
        let mut request = request.into_inner();
        let pages = Pages::open(&self.broker.page_token_key, "", &mut request)?;
        let (after, page_size) = check::list_schedules(&request)?;
        let page = self.broker.operator.list_schedules(&after, page_size).await?;
        let last = page.schedules.last().filter(|_| page.more);
        let next_page_token = pages.seal(last.map(|last| page_token::encode_schedule(&last.spec.name)));
        let schedules: Vec<_> = page.schedules.into_iter().map(|schedule| render::schedule(schedule, 1)).collect();
        let entries = schedules.len();
        Ok(answer::with_room(v1::ListSchedulesResponse { schedules, next_page_token }, entries, room))
    }

    async fn delete_schedule(
        &self,
        request: Request<v1::DeleteScheduleRequest>,
    ) -> Result<Response<v1::DeleteScheduleResponse>, Status> {
        let name = check::schedule_name("name", &request.get_ref().name)?;
        self.broker.operator.delete_schedule(&name).await?;
        Ok(Response::new(v1::DeleteScheduleResponse {}))
    }

    async fn pause_schedule(
        &self,
        request: Request<v1::PauseScheduleRequest>,
    ) -> Result<Response<v1::PauseScheduleResponse>, Status> {
        let name = check::schedule_name("name", &request.get_ref().name)?;
        let schedule = shown(self.broker.operator.pause_schedule(&name, true).await?);
        Ok(Response::new(v1::PauseScheduleResponse { schedule }))
    }

    async fn resume_schedule(
        &self,
        request: Request<v1::ResumeScheduleRequest>,
    ) -> Result<Response<v1::ResumeScheduleResponse>, Status> {
        let name = check::schedule_name("name", &request.get_ref().name)?;
        let schedule = shown(self.broker.operator.pause_schedule(&name, false).await?);
        Ok(Response::new(v1::ResumeScheduleResponse { schedule }))
    }

    async fn run_schedule(
        &self,
        request: Request<v1::RunScheduleRequest>,
    ) -> Result<Response<v1::RunScheduleResponse>, Status> {
        let (name, key) = check::run_schedule(request.into_inner(), &self.broker.cluster())?;
        let job = Some(render::enqueued(self.broker.operator.run_schedule(&name, key).await?));
        Ok(Response::new(v1::RunScheduleResponse { job }))
    }
}
