//! `BulkService` for several stores. A bulk operation runs in one store: the home of its task type, unless the call names another.

use howdah_proto::v1;
use tonic::{Request, Response, Status};

use super::{Envelope, RoutingService, Services};
use crate::{error::Error, stores::ConfiguredStore};

fn task_type(spec: Option<&v1::BulkSpec>) -> &str {
    spec.map_or("", |spec| &spec.task_type)
}

impl RoutingService {
    /// Finds the store of a bulk operation by its id. If two stores use the id, the call must name the store.
    async fn of_bulk<T>(&self, request: &Request<T>, id: i64) -> Result<Services, Status> {
        if let Some(services) = self.named_services(request.metadata())? {
            return Ok(services);
        }
        let envelope = Envelope::like(request);
        let mut found: Vec<&ConfiguredStore> = Vec::new();
        for store in self.stores.all() {
            let services = self.services_of(store.served()?)?;
            // The check uses the caller's rights: other callers' bulk operations do not exist for this caller.
            match services.bulks().get_bulk(envelope.around(v1::GetBulkRequest { id })).await {
                Ok(_) => found.push(store),
                Err(status) if status.code() == tonic::Code::NotFound => {}
                Err(status) => return Err(status),
            }
        }
        match &found[..] {
            [] => Ok(self.main()),
            [one] => Ok(self.services_of(one.served()?)?),
            several => {
                let names: Vec<&str> = several.iter().map(|store| store.name()).collect();
                let problem = format!(
                    "is {id}, and each of the stores {} has a bulk operation of that id: name one in the metadata {}",
                    names.join(", "),
                    super::STORE
                );
                Err(Error::invalid("id", problem).into())
            }
        }
    }

    /// Store of the jobs of a bulk operation.
    async fn of_bulk_spec<T>(&self, request: &Request<T>, spec: Option<&v1::BulkSpec>) -> Result<Services, Status> {
        match spec {
            // An undo runs in the store of the bulk operation that it undoes.
            Some(spec) if spec.undo_bulk_id != 0 => self.of_bulk(request, spec.undo_bulk_id).await,
            spec => Ok(self.named_or_home(request.metadata(), task_type(spec)).await?),
        }
    }

    /// Sets the store in a bulk operation of a response.
    fn named_bulk(&self, services: &Services, mut bulk: Option<v1::Bulk>) -> Option<v1::Bulk> {
        if let Some(bulk) = &mut bulk {
            self.stores.name_of(&services.broker).unwrap_or_default().clone_into(&mut bulk.store);
        }
        bulk
    }
}

howdah_proto::bulk_service!(RoutingService);

impl RoutingService {
    pub(super) async fn preview_bulk(
        &self,
        request: Request<v1::PreviewBulkRequest>,
    ) -> Result<Response<v1::PreviewBulkResponse>, Status> {
        let services = self.of_bulk_spec(&request, request.get_ref().spec.as_ref()).await?;
        services.bulks().preview_bulk(request).await
    }

    pub(super) async fn start_bulk(
        &self,
        request: Request<v1::StartBulkRequest>,
    ) -> Result<Response<v1::StartBulkResponse>, Status> {
        let services = self.of_bulk_spec(&request, request.get_ref().spec.as_ref()).await?;
        let mut answer = services.bulks().start_bulk(request).await?;
        answer.get_mut().bulk = self.named_bulk(&services, answer.get_mut().bulk.take());
        Ok(answer)
    }

    pub(super) async fn pause_bulk(
        &self,
        request: Request<v1::PauseBulkRequest>,
    ) -> Result<Response<v1::PauseBulkResponse>, Status> {
        let services = self.of_bulk(&request, request.get_ref().id).await?;
        let mut answer = services.bulks().pause_bulk(request).await?;
        answer.get_mut().bulk = self.named_bulk(&services, answer.get_mut().bulk.take());
        Ok(answer)
    }

    pub(super) async fn resume_bulk(
        &self,
        request: Request<v1::ResumeBulkRequest>,
    ) -> Result<Response<v1::ResumeBulkResponse>, Status> {
        let services = self.of_bulk(&request, request.get_ref().id).await?;
        let mut answer = services.bulks().resume_bulk(request).await?;
        answer.get_mut().bulk = self.named_bulk(&services, answer.get_mut().bulk.take());
        Ok(answer)
    }

    pub(super) async fn cancel_bulk(
        &self,
        request: Request<v1::CancelBulkRequest>,
    ) -> Result<Response<v1::CancelBulkResponse>, Status> {
        let services = self.of_bulk(&request, request.get_ref().id).await?;
        let mut answer = services.bulks().cancel_bulk(request).await?;
        answer.get_mut().bulk = self.named_bulk(&services, answer.get_mut().bulk.take());
        Ok(answer)
    }

    pub(super) async fn get_bulk(
        &self,
        request: Request<v1::GetBulkRequest>,
    ) -> Result<Response<v1::GetBulkResponse>, Status> {
        let services = self.of_bulk(&request, request.get_ref().id).await?;
        let mut answer = services.bulks().get_bulk(request).await?;
        answer.get_mut().bulk = self.named_bulk(&services, answer.get_mut().bulk.take());
        Ok(answer)
    }

    pub(super) async fn list_bulks(
        &self,
        request: Request<v1::ListBulksRequest>,
    ) -> Result<Response<v1::ListBulksResponse>, Status> {
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        let call = |store: Services, part| async move { store.bulks().list_bulks(part).await };
        self.one_by_one(request, stores, call).await
    }
}
