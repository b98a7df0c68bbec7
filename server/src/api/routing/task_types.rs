//! `TaskTypeService` for several stores. Each store that has a type keeps its settings; a change applies to all of them.

use howdah_proto::v1;
use tonic::{Extensions, Request, Response, Status};

use super::{Envelope, RoutingService, Services, answered, joined, no_answer, note_unanswered};
use crate::stores::ConfiguredStore;

impl RoutingService {
    /// Calls each of these stores, one after the other, and merges the responses. `name` sets the store in the entries of a
    /// response.
    pub(super) async fn of_each<T, A, F>(
        &self,
        request: Request<T>,
        (stores, mut unanswered): (Vec<&ConfiguredStore>, Vec<&str>),
        name: impl Fn(&mut A, &str),
        call: impl Fn(Services, Request<T>) -> F,
    ) -> Result<Response<A>, Status>
    where
        T: Clone,
        A: Each,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (envelope, message) = Envelope::split(request);
        let is_alone = stores.len() == 1;
        let (mut answer, mut held) = (None::<A>, Vec::<Extensions>::new());
        for store in stores {
            let part = match store.reachable().and_then(|served| self.services_of(served)) {
                Ok(services) => answered(call(services, envelope.around(message.clone())), is_alone).await?,
                Err(_) => None,
            };
            let Some(part) = part else {
                unanswered.push(store.name());
                continue;
            };
            let (_, mut part, extensions) = part.into_parts();
            held.push(extensions);
            name(&mut part, store.name());
            match &mut answer {
                Some(answer) => answer.add(part),
                None => answer = Some(part),
            }
        }
        let Some(answer) = answer else { return Err(no_answer(&unanswered)) };
        let mut response = joined(answer, held);
        note_unanswered(&mut response, &unanswered);
        Ok(response)
    }
}

/// A response that is merged from several stores.
pub(super) trait Each {
    /// Adds the response of another store.
    fn add(&mut self, other: Self);
}

impl Each for v1::ListErrorGroupsResponse {
    fn add(&mut self, other: Self) {
        self.groups.extend(other.groups);
        self.partial |= other.partial;
    }
}

impl Each for v1::GetStatsResponse {
    fn add(&mut self, other: Self) {
        self.stats.extend(other.stats);
        // Statistics are complete up to the earliest of the stores' times.
        let times = [self.complete_time.take(), other.complete_time].into_iter().flatten();
        self.complete_time = times.min_by_key(|time| (time.seconds, time.nanos));
    }
}

/// Implements `Each` for changes, which have the same response in every store.
macro_rules! the_first {
    ($($answer:ident),*) => {
        $(impl Each for v1::$answer {
            fn add(&mut self, _: Self) {}
        })*
    };
}

the_first!(UpdateTaskTypeResponse, PauseLimitKeyResponse, ResumeLimitKeyResponse, UpdateSettingsResponse);

/// Sets no store, for entries without a store field.
pub(super) fn unnamed<A>(_: &mut A, _: &str) {}

howdah_proto::task_type_service!(RoutingService);

impl RoutingService {
    pub(super) async fn list_task_types(
        &self,
        request: Request<v1::ListTaskTypesRequest>,
    ) -> Result<Response<v1::ListTaskTypesResponse>, Status> {
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        let is_named = self.named_store(request.metadata())?.is_some();
        let call = |store: Services, part| async move { store.task_types().list_task_types(part).await };
        let mut answer = self.one_by_one(request, stores, call).await?;
        if !is_named {
            // Storage health is per store, so only a call that names a store returns it.
            answer.get_mut().storage = None;
        }
        Ok(answer)
    }

    pub(super) async fn update_task_type(
        &self,
        request: Request<v1::UpdateTaskTypeRequest>,
    ) -> Result<Response<v1::UpdateTaskTypeResponse>, Status> {
        let task_type = request.get_ref().task_type.clone();
        let (stores, unreachable) = self.concerned_or_home(request.metadata(), &task_type).await?;
        let call = |store: Services, part| async move { store.task_types().update_task_type(part).await };
        Box::pin(self.change_each(request, (stores, unreachable), call)).await
    }

    pub(super) async fn pause_limit_key(
        &self,
        request: Request<v1::PauseLimitKeyRequest>,
    ) -> Result<Response<v1::PauseLimitKeyResponse>, Status> {
        let stores = self.concerned_or_home(request.metadata(), &request.get_ref().task_type).await?;
        let call = |store: Services, part| async move { store.task_types().pause_limit_key(part).await };
        self.change_each(request, stores, call).await
    }

    pub(super) async fn resume_limit_key(
        &self,
        request: Request<v1::ResumeLimitKeyRequest>,
    ) -> Result<Response<v1::ResumeLimitKeyResponse>, Status> {
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        let call = |store: Services, part| async move { store.task_types().resume_limit_key(part).await };
        self.change_each(request, stores, call).await
    }

    pub(super) async fn list_limit_keys(
        &self,
        request: Request<v1::ListLimitKeysRequest>,
    ) -> Result<Response<v1::ListLimitKeysResponse>, Status> {
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        let call = |store: Services, part| async move { store.task_types().list_limit_keys(part).await };
        self.one_by_one(request, stores, call).await
    }

    pub(super) async fn get_stats(
        &self,
        request: Request<v1::GetStatsRequest>,
    ) -> Result<Response<v1::GetStatsResponse>, Status> {
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        let name = |answer: &mut v1::GetStatsResponse, name: &str| {
            answer.stats.iter_mut().for_each(|stats| name.clone_into(&mut stats.store));
        };
        let call = |store: Services, part| async move { store.task_types().get_stats(part).await };
        self.of_each(request, stores, name, call).await
    }
}
