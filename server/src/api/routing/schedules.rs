//! `ScheduleService` for several stores. A schedule is in the store of its task type, so that firing and enqueueing share a
//! transaction.

use howdah_proto::v1;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use super::{RoutingService, Services};
use crate::{
    access::Operation,
    api::{authenticate::caller, permit},
    error::Error,
    job::schedule::Schedule,
    stores::ConfiguredStore,
};

fn task_type(schedule: Option<&v1::Schedule>) -> &str {
    schedule.and_then(|schedule| schedule.template.as_ref()).map_or("", |template| &template.task_type)
}

impl RoutingService {
    /// Finds the store of a schedule by its name. Returns the primary store if no store has it, and an error if an unreachable
    /// store may have it.
    async fn of_schedule<T>(&self, request: &Request<T>, name: &str) -> Result<Services, Error> {
        if let Some(services) = self.named_services(request.metadata())? {
            return Ok(services);
        }
        let caller = caller(request)?;
        // Schedules of other callers do not exist for this caller.
        let is_seen = |schedule: &Schedule| {
            let task_type = &schedule.spec.template.task_type;
            permit::may(&caller, Operation::Read, task_type) || permit::may(&caller, Operation::Enqueue, task_type)
        };
        let mut found: Vec<&ConfiguredStore> = Vec::new();
        let mut unreachable = None;
        for store in self.stores.all() {
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
        match (&found[..], unreachable) {
            ([one], _) => self.services_of(one.served()?),
            ([], Some(unreachable)) => Err(unreachable),
            ([], None) => Ok(self.main()),
            (several, _) => {
                let names: Vec<&str> = several.iter().map(|store| store.name()).collect();
                let problem = format!(
                    "is the name of a schedule in each of the stores {}: name one in the metadata {}",
                    names.join(", "),
                    super::STORE
                );
                Err(Error::invalid("name", problem))
            }
        }
    }

    /// Whether a reachable store has a schedule of this name.
    async fn has_schedule(&self, name: &str) -> Result<bool, Error> {
        for store in self.stores.all() {
            match store.reachable()?.broker.operator.get_schedule(name).await {
                Ok(_) => return Ok(true),
                Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Store of a new schedule: the home of its task type.
    async fn of_new_schedule(
        &self,
        metadata: &MetadataMap,
        schedule: Option<&v1::Schedule>,
    ) -> Result<Services, Error> {
        self.named_or_home(metadata, task_type(schedule)).await
    }
}

howdah_proto::schedule_service!(RoutingService);

impl RoutingService {
    pub(super) async fn create_schedule(
        &self,
        request: Request<v1::CreateScheduleRequest>,
    ) -> Result<Response<v1::CreateScheduleResponse>, Status> {
        let services = self.of_new_schedule(request.metadata(), request.get_ref().schedule.as_ref()).await?;
        services.schedules().create_schedule(request).await
    }

    pub(super) async fn update_schedule(
        &self,
        request: Request<v1::UpdateScheduleRequest>,
    ) -> Result<Response<v1::UpdateScheduleResponse>, Status> {
        let schedule = request.get_ref().schedule.as_ref();
        let name = schedule.map(|schedule| schedule.name.clone()).unwrap_or_default();
        let allow_missing = request.get_ref().allow_missing;
        let services = if allow_missing && !self.has_schedule(&name).await? {
            self.of_new_schedule(request.metadata(), schedule).await?
        } else {
            self.of_schedule(&request, &name).await?
        };
        services.schedules().update_schedule(request).await
    }

    pub(super) async fn get_schedule(
        &self,
        request: Request<v1::GetScheduleRequest>,
    ) -> Result<Response<v1::GetScheduleResponse>, Status> {
        let services = self.of_schedule(&request, &request.get_ref().name).await?;
        services.schedules().get_schedule(request).await
    }

    pub(super) async fn list_schedules(
        &self,
        request: Request<v1::ListSchedulesRequest>,
    ) -> Result<Response<v1::ListSchedulesResponse>, Status> {
        let stores = self.concerned(request.metadata(), "").await?;
        let call = |store: Services, part| async move { store.schedules().list_schedules(part).await };
        self.one_by_one(request, stores, call).await
    }

    pub(super) async fn delete_schedule(
        &self,
        request: Request<v1::DeleteScheduleRequest>,
    ) -> Result<Response<v1::DeleteScheduleResponse>, Status> {
        let services = self.of_schedule(&request, &request.get_ref().name).await?;
        services.schedules().delete_schedule(request).await
    }

    pub(super) async fn pause_schedule(
        &self,
        request: Request<v1::PauseScheduleRequest>,
    ) -> Result<Response<v1::PauseScheduleResponse>, Status> {
        let services = self.of_schedule(&request, &request.get_ref().name).await?;
        services.schedules().pause_schedule(request).await
    }

    pub(super) async fn resume_schedule(
        &self,
        request: Request<v1::ResumeScheduleRequest>,
    ) -> Result<Response<v1::ResumeScheduleResponse>, Status> {
        let services = self.of_schedule(&request, &request.get_ref().name).await?;
        services.schedules().resume_schedule(request).await
    }

    pub(super) async fn run_schedule(
        &self,
        request: Request<v1::RunScheduleRequest>,
    ) -> Result<Response<v1::RunScheduleResponse>, Status> {
        let services = self.of_schedule(&request, &request.get_ref().name).await?;
        services.schedules().run_schedule(request).await
    }
}
