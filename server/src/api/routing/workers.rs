//! `WorkerService` of several stores.

use std::sync::Arc;

use futures::StreamExt as _;
use howdah_proto::v1::{self, SettleStatus};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use super::{RoutingService, Services, note_unanswered, split::Joined};
use crate::{
    job::LeasedJob,
    session::ServerMessage,
    stores::{pull, stream},
};

macro_rules! joined {
    ($($answer:ident),*) => {
        $(impl Joined for v1::$answer {
            fn join(&mut self, other: Self) {
                self.results.extend(other.results);
            }
        })*
    };
}

joined!(SettleJobsResponse, ExtendJobsResponse, ReportProgressResponse);

/// Result for an item whose store does not answer. It is unknown whether the item took effect, so the worker must send it again.
fn unavailable(store: &str, id: i64, token: i64) -> v1::SettleResult {
    v1::SettleResult {
        id,
        token,
        status: SettleStatus::Unavailable.into(),
        message: format!("store {store} did not answer in time; send this item again"),
    }
}

macro_rules! settling {
    ($call:ident, $request:ident, $items:ident, $answer:ident, $self:ident, $given:ident) => {{
        let items = $given.get_ref().$items.clone();
        let with = |_: &v1::$request, $items| v1::$request { $items };
        let call = |store: Services, part| async move { store.workers().$call(part).await };
        let (answer, unanswered) =
            $self.split_items($given, items, (|item| item.id, |item| (item.id, item.token)), with, call).await?;
        let mut answer = answer.unwrap_or_else(|| Response::new(v1::$answer::default()));
        for (store, leases) in &unanswered {
            let of = |&(id, token): &(i64, i64)| unavailable(store, id, token);
            answer.get_mut().results.extend(leases.iter().map(of));
        }
        let names: Vec<&str> = unanswered.iter().map(|(name, _)| name.as_str()).collect();
        note_unanswered(&mut answer, &names);
        Ok(answer)
    }};
}

howdah_proto::worker_service!(RoutingService);

impl RoutingService {
    pub(super) async fn work(
        &self,
        request: Request<Streaming<v1::WorkRequest>>,
    ) -> Result<Response<BoxStream<v1::WorkResponse>>, Status> {
        if let Some(services) = self.named_services(request.metadata())? {
            return services.workers().work(request).await;
        }
        let (stores, homes) = (self.stores.clone(), self.stores.clone());
        let home: stream::Home = Arc::new(move |name| homes.chosen(name));
        let stream_stores = stores.for_stream();
        let serve = |caller, client, messages| stream::serve(stream_stores, caller, client, home, messages).boxed();
        let context_of = move |message: &ServerMessage| match message {
            ServerMessage::Jobs(jobs) => {
                let served = stores.of_id(jobs.first()?.lease.id).ok()??;
                Some(served.broker.workers.clone())
            }
            _ => None,
        };
        self.main().workers().work_with(request, serve, context_of)
    }

    pub(super) async fn pull_jobs(
        &self,
        request: Request<v1::PullJobsRequest>,
    ) -> Result<Response<v1::PullJobsResponse>, Status> {
        if let Some(services) = self.named_services(request.metadata())? {
            return services.workers().pull_jobs(request).await;
        }
        let (stores, homes) = (self.stores.clone(), self.stores.clone());
        let home: stream::Home = Arc::new(move |name| homes.chosen(name));
        let stream_stores = stores.for_stream();
        let pull = async move |args, room, by: Arc<str>| pull::pull(&stream_stores, &home, args, (room, &by)).await;
        let context_of = move |job: &LeasedJob| Some(stores.of_id(job.lease.id).ok()??.broker.workers.clone());
        self.main().workers().pull_with(request, pull, context_of).await
    }

    pub(super) async fn settle_jobs(
        &self,
        request: Request<v1::SettleJobsRequest>,
    ) -> Result<Response<v1::SettleJobsResponse>, Status> {
        settling!(settle_jobs, SettleJobsRequest, outcomes, SettleJobsResponse, self, request)
    }

    pub(super) async fn extend_jobs(
        &self,
        request: Request<v1::ExtendJobsRequest>,
    ) -> Result<Response<v1::ExtendJobsResponse>, Status> {
        settling!(extend_jobs, ExtendJobsRequest, extensions, ExtendJobsResponse, self, request)
    }

    pub(super) async fn report_progress(
        &self,
        request: Request<v1::ReportProgressRequest>,
    ) -> Result<Response<v1::ReportProgressResponse>, Status> {
        settling!(report_progress, ReportProgressRequest, reports, ReportProgressResponse, self, request)
    }

    pub(super) async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let stores = self.concerned(request.metadata(), &request.get_ref().task_type).await?;
        // A worker has a session in every store. Without a task type in the request, a store lists only workers with a
        // window there. With a task type, the store itself selects its workers.
        let of_all = request.get_ref().task_type.is_empty();
        let call = |store: Services, part| async move {
            let mut answer = store.workers().list_workers(part).await?;
            answer.get_mut().workers.retain(|worker| !of_all || !worker.windows.is_empty());
            Ok(answer)
        };
        self.one_by_one(request, stores, call).await
    }
}
