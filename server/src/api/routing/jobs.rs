//! `JobService` for several stores.

use std::collections::{HashMap, HashSet};

use futures::{StreamExt as _, stream::select_all};
use howdah_proto::v1;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use super::{
    Envelope, RoutingService, Services, attempts, listing::Listed, split::Joined, streams::kinds, task_types::unnamed,
};
use crate::api::{authenticate::caller, job_service::pipeline_into};

macro_rules! joined {
    ($($answer:ident: $($ids:ident),*;)*) => {
        $(impl Joined for v1::$answer {
            fn join(&mut self, other: Self) {
                $(self.$ids.extend(other.$ids);)*
            }
        })*
    };
}

joined! {
    CancelJobsResponse: cancelled_ids;
    RetryJobsResponse: retried_ids, key_held_ids, revived_ids;
    EndLeasesResponse: ended_ids;
    DiscardJobsResponse: discarded_ids;
}

impl Joined for v1::ReprioritizeJobsResponse {
    fn join(&mut self, other: Self) {
        self.reprioritized_ids.extend(other.reprioritized_ids);
        self.job_count += other.job_count;
    }
}

/// Implements `Listed` for calls that can also select the jobs of a type: one store follows the other.
macro_rules! listed {
    ($($answer:ident: $ids:ident;)*) => {
        $(impl Listed for v1::$answer {
            fn len(&self) -> usize {
                self.$ids.len()
            }

            fn token(&mut self) -> &mut String {
                &mut self.next_page_token
            }

            fn append(&mut self, other: Self) {
                self.join(other);
            }
        })*
    };
}

listed! {
    CancelJobsResponse: cancelled_ids;
    RetryJobsResponse: retried_ids;
    DiscardJobsResponse: discarded_ids;
    ReprioritizeJobsResponse: reprioritized_ids;
}

/// The filter with these ids.
fn of_ids(filter: Option<&v1::JobFilter>, ids: Vec<i64>) -> Option<v1::JobFilter> {
    Some(v1::JobFilter { ids, ..filter.cloned().unwrap_or_default() })
}

/// Ids and task type of a filter.
fn parts(filter: Option<&v1::JobFilter>) -> (Vec<i64>, String) {
    filter.map(|filter| (filter.ids.clone(), filter.task_type.clone())).unwrap_or_default()
}

impl RoutingService {
    /// Current id of a job that has moved to another store, if `found` shows that a call has not found it by `id`.
    async fn instead<A>(&self, found: &Result<Response<A>, Status>, id: i64) -> Result<Option<i64>, Status> {
        match found {
            Err(status) if status.code() == tonic::Code::NotFound => Ok(self.moved_one(id).await?),
            _ => Ok(None),
        }
    }

    /// Cancels jobs by their ids in their stores.
    async fn cancel_by_id(
        &self,
        request: Request<v1::CancelJobsRequest>,
        ids: Vec<i64>,
    ) -> Result<Response<v1::CancelJobsResponse>, Status> {
        let call = |store: Services, part| async move { store.jobs().cancel_jobs(part).await };
        let with = |message: &v1::CancelJobsRequest, ids: Vec<i64>| match &message.filter {
            Some(filter) if !filter.ids.is_empty() => {
                v1::CancelJobsRequest { filter: of_ids(Some(filter), ids), ..message.clone() }
            }
            _ => v1::CancelJobsRequest { ids, ..message.clone() },
        };
        self.split(request, ids, |id| *id, with, call).await
    }
}

howdah_proto::job_service!(RoutingService);

impl RoutingService {
    pub(super) async fn enqueue_jobs(
        &self,
        request: Request<v1::EnqueueJobsRequest>,
    ) -> Result<Response<v1::EnqueueJobsResponse>, Status> {
        let (caller, kinds) = (caller(&request)?, kinds(&request.get_ref().jobs));
        let services = self.store_of(request.metadata(), &caller, &kinds).await?;
        services.jobs().enqueue_jobs(request).await
    }

    #[allow(clippy::unused_async, reason = "like every method of the service")]
    pub(super) async fn stream_enqueue(
        &self,
        request: Request<Streaming<v1::StreamEnqueueRequest>>,
    ) -> Result<Response<BoxStream<v1::StreamEnqueueResponse>>, Status> {
        let (service, metadata, caller) = (self.clone(), request.metadata().clone(), caller(&request)?);
        self.named_store(&metadata)?;
        let choose = move |jobs: &[v1::NewJob]| {
            let (service, metadata, caller, kinds) = (service.clone(), metadata.clone(), caller.clone(), kinds(jobs));
            async move { Ok(service.store_of(&metadata, &caller, &kinds).await?.broker) }
        };
        pipeline_into(self.stores.main(), &self.stopping, request, choose)
    }

    pub(super) async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let (envelope, message) = Envelope::split(request);
        let found = self.of_id(message.id)?.jobs().get_job(envelope.around(message)).await;
        let Some(id) = self.instead(&found, message.id).await? else { return found };
        self.of_id(id)?.jobs().get_job(envelope.around(v1::GetJobRequest { id })).await
    }

    pub(super) async fn explain_job(
        &self,
        request: Request<v1::ExplainJobRequest>,
    ) -> Result<Response<v1::ExplainJobResponse>, Status> {
        let (envelope, message) = Envelope::split(request);
        let found = self.of_id(message.id)?.jobs().explain_job(envelope.around(message)).await;
        let Some(id) = self.instead(&found, message.id).await? else { return found };
        self.of_id(id)?.jobs().explain_job(envelope.around(v1::ExplainJobRequest { id })).await
    }

    pub(super) async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        let call = |store: Services, part| async move { store.jobs().list_jobs(part).await };
        if request.get_ref().order() == v1::JobOrder::Unspecified {
            return self.one_by_one(request, stores, call).await;
        }
        let size = request.get_ref().page_size;
        let mut answer = self.of_each(request, stores, unnamed, call).await?;
        attempts::put_together(answer.get_mut(), size);
        Ok(answer)
    }

    pub(super) async fn search_jobs(
        &self,
        request: Request<v1::SearchJobsRequest>,
    ) -> Result<Response<v1::SearchJobsResponse>, Status> {
        if let Some(v1::search_jobs_request::Query::Id(id)) = request.get_ref().query {
            return self.of_id(id)?.jobs().search_jobs(request).await;
        }
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        self.one_by_one(request, stores, |store, part| async move { store.jobs().search_jobs(part).await }).await
    }

    pub(super) async fn cancel_jobs(
        &self,
        request: Request<v1::CancelJobsRequest>,
    ) -> Result<Response<v1::CancelJobsResponse>, Status> {
        let (ids, task_type) = parts(request.get_ref().filter.as_ref());
        let call = |store: Services, part| async move { store.jobs().cancel_jobs(part).await };
        if !task_type.is_empty() {
            let stores = self.concerned(request.metadata(), &task_type).await?;
            return self.one_by_one(request, stores, call).await;
        }
        let ids = if ids.is_empty() { request.get_ref().ids.clone() } else { ids };
        let (envelope, message) = Envelope::split(request);
        let mut answer = self.cancel_by_id(envelope.around(message.clone()), ids.clone()).await?;
        // Cancels moved jobs in their new stores, and reports them by the ids that the caller sent.
        let done: HashSet<i64> = answer.get_ref().cancelled_ids.iter().copied().collect();
        let others: Vec<i64> = ids.into_iter().filter(|id| !done.contains(id)).collect();
        let moved = self.moved(&others).await?;
        if !moved.is_empty() {
            let old: HashMap<i64, i64> = moved.iter().map(|(old, new)| (*new, *old)).collect();
            let more = self.cancel_by_id(envelope.around(message), moved.into_values().collect()).await?.into_inner();
            let more = more.cancelled_ids.into_iter().map(|id| old.get(&id).copied().unwrap_or(id));
            answer.get_mut().cancelled_ids.extend(more);
        }
        Ok(answer)
    }

    pub(super) async fn retry_jobs(
        &self,
        request: Request<v1::RetryJobsRequest>,
    ) -> Result<Response<v1::RetryJobsResponse>, Status> {
        let (ids, task_type) = parts(request.get_ref().filter.as_ref());
        let call = |store: Services, part| async move { store.jobs().retry_jobs(part).await };
        if !task_type.is_empty() {
            let stores = self.concerned(request.metadata(), &task_type).await?;
            return Box::pin(self.one_by_one(request, stores, call)).await;
        }
        let with = |message: &v1::RetryJobsRequest, ids| v1::RetryJobsRequest {
            filter: of_ids(message.filter.as_ref(), ids),
            ..message.clone()
        };
        self.split(request, ids, |id| *id, with, call).await
    }

    pub(super) async fn end_leases(
        &self,
        request: Request<v1::EndLeasesRequest>,
    ) -> Result<Response<v1::EndLeasesResponse>, Status> {
        let ids = request.get_ref().ids.clone();
        let with = |message: &v1::EndLeasesRequest, ids| v1::EndLeasesRequest { ids, ..message.clone() };
        let call = |store: Services, part| async move { store.jobs().end_leases(part).await };
        self.split(request, ids, |id| *id, with, call).await
    }

    pub(super) async fn discard_jobs(
        &self,
        request: Request<v1::DiscardJobsRequest>,
    ) -> Result<Response<v1::DiscardJobsResponse>, Status> {
        let (ids, task_type) = parts(request.get_ref().filter.as_ref());
        let call = |store: Services, part| async move { store.jobs().discard_jobs(part).await };
        if !task_type.is_empty() {
            let stores = self.concerned(request.metadata(), &task_type).await?;
            return self.one_by_one(request, stores, call).await;
        }
        let with = |message: &v1::DiscardJobsRequest, ids| v1::DiscardJobsRequest {
            filter: of_ids(message.filter.as_ref(), ids),
            ..message.clone()
        };
        self.split(request, ids, |id| *id, with, call).await
    }

    pub(super) async fn list_error_groups(
        &self,
        request: Request<v1::ListErrorGroupsRequest>,
    ) -> Result<Response<v1::ListErrorGroupsResponse>, Status> {
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        let most = usize::try_from(request.get_ref().page_size).unwrap_or_default();
        let call = |store: Services, part| async move { store.jobs().list_error_groups(part).await };
        let groups = |response: &mut v1::ListErrorGroupsResponse, name: &str| {
            response.groups.iter_mut().for_each(|group| name.clone_into(&mut group.store));
        };
        let mut answer = self.of_each(request, stores, groups, call).await?;
        let found = answer.get_mut();
        // Each store returns the largest group first.
        found.groups.sort_by_key(|group| std::cmp::Reverse(group.dead_count + group.backing_off_count));
        if most > 0 {
            found.groups.truncate(most);
        }
        Ok(answer)
    }

    pub(super) async fn wait_jobs(
        &self,
        request: Request<v1::WaitJobsRequest>,
    ) -> Result<Response<BoxStream<v1::WaitJobsResponse>>, Status> {
        let moved = self.moved(&request.get_ref().ids).await?;
        let ids = request.get_ref().ids.iter().map(|id| moved.get(id).copied().unwrap_or(*id)).collect();
        // Maps new ids back to the ids that the caller used.
        let old: HashMap<i64, i64> = moved.into_iter().map(|(old, new)| (new, old)).collect();
        let (envelope, message) = Envelope::split(request);
        let mut streams = Vec::new();
        for (services, ids) in self.by_store(ids)? {
            let part = v1::WaitJobsRequest { ids, ..message };
            streams.push(services.jobs().wait_jobs(envelope.around(part)).await?.into_inner());
        }
        if streams.is_empty() {
            return self.main().jobs().wait_jobs(envelope.around(message)).await;
        }
        let known = move |mut answer: Result<v1::WaitJobsResponse, Status>| {
            if let Ok(v1::WaitJobsResponse { job: Some(job) }) = &mut answer
                && let Some(id) = old.get(&job.id)
            {
                job.id = *id;
            }
            answer
        };
        Ok(Response::new(select_all(streams).map(known).boxed()))
    }

    pub(super) async fn reprioritize_jobs(
        &self,
        request: Request<v1::ReprioritizeJobsRequest>,
    ) -> Result<Response<v1::ReprioritizeJobsResponse>, Status> {
        let call = |store: Services, part| async move { store.jobs().reprioritize_jobs(part).await };
        let task_type = request.get_ref().task_type.clone();
        if !task_type.is_empty() {
            let stores = self.concerned(request.metadata(), &task_type).await?;
            return self.one_by_one(request, stores, call).await;
        }
        let ids = request.get_ref().ids.clone();
        let with = |message: &v1::ReprioritizeJobsRequest, ids| v1::ReprioritizeJobsRequest { ids, ..message.clone() };
        self.split(request, ids, |id| *id, with, call).await
    }
}
