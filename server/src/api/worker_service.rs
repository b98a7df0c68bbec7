//! `WorkerService`: the `Work` stream and its unary counterparts.

use std::sync::Arc;

use futures::StreamExt as _;
use howdah_proto::{Rpc, v1};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use super::{
    answer,
    authenticate::{caller, counted},
    check,
    once_sent::OnceSent,
    page_token,
    pages::Pages,
    permit, render,
};
use crate::{
    access::{Caller, Operation, Refusal},
    broker::SharedBroker,
    error::Error,
    job::{Lease, LeasedJob, ListedWorker, SettleStatus, TaskTypeName, WorkerPosition},
    memory::{AnswerMemory, Held},
    session::{self, Unsent},
    stores::pull::PullArgs,
};

/// Maximum number of statements for a page of workers. A page that needs more is returned with fewer workers.
const MOST_READS: usize = 20;

/// Checked messages from a worker.
pub(super) type Incoming = futures::stream::BoxStream<'static, Result<session::ClientMessage, Error>>;
/// Messages to a worker.
pub(super) type Outgoing = futures::stream::BoxStream<'static, Result<session::ServerMessage, Error>>;

/// Service for workers.
pub(super) struct WorkerService {
    broker: SharedBroker,
}

impl WorkerService {
    pub(super) fn new(broker: SharedBroker) -> Self {
        Self { broker }
    }

    /// Passes the items whose leases the caller may work on to `handle`. The other items are answered as lost. The
    /// statuses are in the order of the leases.
    async fn of_own<T>(
        &self,
        caller: &Caller,
        leases: &[Lease],
        items: Vec<T>,
        handle: impl AsyncFnOnce(Vec<T>) -> Vec<SettleStatus>,
    ) -> Result<Vec<SettleStatus>, Error> {
        let is_own = permit::own_leases(&self.broker, caller, leases).await?;
        let own = items.into_iter().zip(&is_own).filter(|(_, own)| **own).map(|(item, _)| item).collect();
        let mut statuses = handle(own).await.into_iter();
        // If a status is missing, it is unknown whether the item took effect.
        let status =
            |own| if own { statuses.next().unwrap_or(SettleStatus::Unavailable) } else { SettleStatus::LeaseLost };
        Ok(is_own.into_iter().map(status).collect())
    }

    /// Serves a worker stream. `context_of` returns the session context of the store whose jobs a message has; `None`
    /// for the store of this service.
    pub(super) fn work_with(
        &self,
        request: Request<Streaming<v1::WorkRequest>>,
        serve: impl FnOnce(Caller, session::ClientInfo, Incoming) -> Outgoing,
        context_of: impl Fn(&session::ServerMessage) -> Option<Arc<session::SessionContext>> + Send + 'static,
    ) -> Result<Response<BoxStream<v1::WorkResponse>>, Status> {
        // Nothing has been read from the stream yet: clients wait for the headers before they send.
        let (checking, rendering) = (self.broker.workers.clone(), self.broker.workers.clone());
        let caller = caller(&request)?;
        let open = caller.open_stream()?;
        let (broker, principal) = (self.broker.clone(), caller.principal().clone());
        let peer = answer::peer(&request).socket;
        let user_agent = request.metadata().get("user-agent").and_then(|value| value.to_str().ok());
        let client = session::ClientInfo {
            peer: peer.map(|address| address.to_string()).unwrap_or_default(),
            user_agent: user_agent.unwrap_or_default().to_owned(),
        };
        let note = move |error: &Error| {
            broker.access.refusals.note(&Refusal {
                code: error.code().0,
                problem: &error.to_string(),
                principal: Some(&principal),
                peer,
                method: Rpc::Work.name(),
            });
        };
        let mut is_first = true;
        let mut batch = 0;
        let messages = request.into_inner().map(move |message| match message {
            Ok(message) => {
                let is_first = std::mem::take(&mut is_first);
                let mut cluster = checking.registry.cluster();
                // The worker has learned a batch size from `Welcome`. A lower setting does not apply to its stream.
                batch = cluster.batch.max(batch);
                if cluster.batch < batch {
                    Arc::make_mut(&mut cluster).batch = batch;
                }
                check::work_request(message, is_first, &cluster, &checking.config.limits)
            }
            Err(status) => Err(Error::Broken(status)),
        });
        let answers = serve(caller, client, messages.boxed()).map(move |answer| {
            let message = answer.inspect_err(&note)?;
            let of_store = context_of(&message);
            Ok(render::work_response(message, of_store.as_ref().unwrap_or(&rendering))?)
        });
        Ok(Response::new(counted(answers, open)))
    }

    /// Answers a `PullJobs` call with the jobs from `pull`. `context_of` returns the session context of a job's store;
    /// `None` for the store of this service.
    pub(super) async fn pull_with(
        &self,
        request: Request<v1::PullJobsRequest>,
        pull: impl AsyncFnOnce(PullArgs, AnswerMemory, Arc<str>) -> Result<(Vec<LeasedJob>, Unsent, Held), Error>,
        context_of: impl Fn(&LeasedJob) -> Option<Arc<session::SessionContext>>,
    ) -> Result<Response<v1::PullJobsResponse>, Status> {
        let args = check::pull_jobs(request.get_ref(), &self.broker.cluster(), &self.broker.config().limits)?;
        let caller = caller(&request)?;
        for task_type in &args.types {
            caller.check(Operation::Work, task_type)?;
        }
        let room = AnswerMemory::new(&self.broker.answers, &answer::peer(&request).accounts.answers);
        let args = PullArgs { types: args.types, max_jobs: args.max_jobs, lease: args.lease, wait: args.wait };
        let _open = if args.wait.is_zero() { None } else { caller.open_stream()? };
        let (jobs, unsent, room) = tokio::select! {
            pulled = pull(args, room, caller.principal().clone()) => pulled?,
            () = caller.ended() => return Err(caller.ended_error().into()),
        };
        let entries = jobs.len();
        let of_store = jobs.first().and_then(context_of);
        let jobs = render::leased_jobs(jobs, &of_store.as_ref().unwrap_or(&self.broker.workers).registry)?;
        let mut response = answer::with_room(v1::PullJobsResponse { jobs }, entries, room);
        response.extensions_mut().insert(OnceSent::new(move || unsent.sent()));
        Ok(response)
    }

    /// Page of workers as the caller may see them, and the position of the next page.
    async fn visible(
        &self,
        caller: &Caller,
        query: &check::worker::WorkersQuery,
    ) -> Result<(Vec<ListedWorker>, Option<WorkerPosition>), Error> {
        let (mut after, mut seen) = (query.after, Vec::new());
        let only = query.task_type.as_ref().map(TaskTypeName::as_str);
        for _ in 0..MOST_READS {
            let at_most = query.page_size - seen.len();
            let read = self.broker.operator.list_workers(after, only, at_most).await?;
            let last = read.last().map(|worker| worker.position).filter(|_| read.len() >= at_most);
            seen.extend(read.into_iter().filter_map(|worker| permit::seen_worker(caller, worker)));
            match last {
                None => return Ok((seen, None)),
                Some(position) if seen.len() >= query.page_size => return Ok((seen, Some(position))),
                Some(position) => after = position,
            }
        }
        Ok((seen, Some(after)))
    }
}

howdah_proto::worker_service!(WorkerService);

impl WorkerService {
    #[allow(clippy::unused_async, reason = "like every method of the service")]
    pub(super) async fn work(
        &self,
        request: Request<Streaming<v1::WorkRequest>>,
    ) -> Result<Response<BoxStream<v1::WorkResponse>>, Status> {
        let context = self.broker.workers.clone();
        let serve = |caller, client, messages| session::serve(context, caller, client, messages).boxed();
        self.work_with(request, serve, |_| None)
    }

    pub(super) async fn pull_jobs(
        &self,
        request: Request<v1::PullJobsRequest>,
    ) -> Result<Response<v1::PullJobsResponse>, Status> {
        let context = self.broker.workers.clone();
        let pull = async move |args: PullArgs, room, by: Arc<str>| {
            context.pull(args.types, args.max_jobs, args.lease, args.wait, (room, &by)).await
        };
        self.pull_with(request, pull, |_| None).await
    }

    pub(super) async fn settle_jobs(
        &self,
        request: Request<v1::SettleJobsRequest>,
    ) -> Result<Response<v1::SettleJobsResponse>, Status> {
        let caller = caller(&request)?;
        let items = check::settle(request.into_inner().outcomes, &self.broker.cluster(), &self.broker.config().limits)?;
        for settlement in &items.accepted {
            caller.check_stage(&settlement.outcome)?;
            self.broker.workers.registry.create_stage(&settlement.outcome, caller.principal()).await?;
        }
        let leases: Vec<Lease> = items.accepted.iter().map(|settlement| settlement.lease).collect();
        let settle = async |own| self.broker.workers.settle.settle(own).await;
        let statuses = self.of_own(&caller, &leases, items.accepted, settle).await?;
        let results = render::settle_results(items.refused, leases, statuses);
        Ok(Response::new(v1::SettleJobsResponse { results }))
    }

    pub(super) async fn extend_jobs(
        &self,
        request: Request<v1::ExtendJobsRequest>,
    ) -> Result<Response<v1::ExtendJobsResponse>, Status> {
        let caller = caller(&request)?;
        let items = check::extend(request.into_inner().extensions, &self.broker.cluster())?;
        let leases: Vec<Lease> = items.accepted.iter().map(|&(lease, _)| lease).collect();
        let extend = async |own| self.broker.workers.settle.extend(own).await;
        let statuses = self.of_own(&caller, &leases, items.accepted, extend).await?;
        let results = render::settle_results(items.refused, leases, statuses);
        Ok(Response::new(v1::ExtendJobsResponse { results }))
    }

    pub(super) async fn report_progress(
        &self,
        request: Request<v1::ReportProgressRequest>,
    ) -> Result<Response<v1::ReportProgressResponse>, Status> {
        let caller = caller(&request)?;
        let items = check::progress(request.into_inner().reports, &self.broker.cluster())?;
        let leases: Vec<Lease> = items.accepted.iter().map(|report| report.lease).collect();
        let report = async |own| self.broker.workers.progress.submit(own).await.wait().await;
        let statuses = self.of_own(&caller, &leases, items.accepted, report).await?;
        let results = render::settle_results(items.refused, leases, statuses);
        Ok(Response::new(v1::ReportProgressResponse { results }))
    }

    pub(super) async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let caller = caller(&request)?;
        let room = answer::room(&self.broker.answers, &request, answer::MEDIUM).await?;
        let mut request = request.into_inner();
        let pages = Pages::open(&self.broker.page_token_key, caller.principal(), &mut request)?;
        let query = check::list_workers(&request)?;
        if let Some(only) = &query.task_type {
            caller.check(Operation::Read, only)?;
        }
        let (seen, next) = self.visible(&caller, &query).await?;
        let next_page_token = pages.seal(next.map(page_token::encode_worker));
        let workers: Vec<_> = seen.into_iter().map(|worker| render::worker(worker, query.stuck_after)).collect();
        let entries = workers.len();
        Ok(answer::with_room(v1::ListWorkersResponse { workers, next_page_token }, entries, room))
    }
}
