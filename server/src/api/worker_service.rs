//! `WorkerService`: the `Work` stream and its unary counterparts.

use std::sync::Arc;

use futures::StreamExt as _;
use howdah_proto::{
    Rpc,
    v1::{self, worker_service_server},
};
use tonic::{Request, Response, Status, Streaming, async_trait, codegen::BoxStream};

use super::{
    answer,
    authenticate::{caller, counted},
    check,
    once_sent::OnceSent,
    permit, render,
};
use crate::{
    access::{Caller, Operation, Refusal},
    broker::SharedBroker,
    error::Error,
    job::{Lease, SettleStatus},
    memory::AnswerMemory,
    session,
};

/// The service of workers.
pub(super) struct WorkerService {
    broker: SharedBroker,
}

impl WorkerService {
    pub(super) fn new(broker: SharedBroker) -> Self {
        Self { broker }
    }

    /// Handles the items of leases that the caller may work on. The others are lost for it. The statuses are in the order
    /// of the leases.
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
        // Should a status be missing, it is unknown whether the item took effect.
        let status =
            |own| if own { statuses.next().unwrap_or(SettleStatus::Unavailable) } else { SettleStatus::LeaseLost };
        Ok(is_own.into_iter().map(status).collect())
    }
}

#[async_trait]
impl worker_service_server::WorkerService for WorkerService {
    type WorkStream = BoxStream<v1::WorkResponse>;

    async fn work(&self, request: Request<Streaming<v1::WorkRequest>>) -> Result<Response<Self::WorkStream>, Status> {
        // Nothing is read from the stream yet: clients wait for the headers before they send.
        let (checking, rendering) = (self.broker.workers.clone(), self.broker.workers.clone());
        let caller = caller(&request)?;
        let open = caller.open_stream()?;
        let (broker, principal) = (self.broker.clone(), caller.principal().clone());
        let peer = answer::peer(&request).socket;
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
                // Its Welcome told the worker how many outcomes a message may have: that holds while the stream lasts.
                batch = cluster.batch.max(batch);
                if cluster.batch < batch {
                    Arc::make_mut(&mut cluster).batch = batch;
                }
                check::work_request(message, is_first, &cluster, &checking.config.limits)
            }
            Err(status) => Err(Error::Broken(status)),
        });
        let answers = session::serve(self.broker.workers.clone(), caller, messages)
            .map(move |answer| Ok(render::work_response(answer.inspect_err(&note)?, &rendering)?));
        Ok(Response::new(counted(answers, open)))
    }

    async fn pull_jobs(&self, request: Request<v1::PullJobsRequest>) -> Result<Response<v1::PullJobsResponse>, Status> {
        let args = check::pull_jobs(request.get_ref(), &self.broker.cluster(), &self.broker.config().limits)?;
        let caller = caller(&request)?;
        for task_type in &args.types {
            caller.check(Operation::Work, task_type)?;
        }
        let room = AnswerMemory::new(&self.broker.answers, &answer::peer(&request).accounts.answers);
        let (types, wait) = (args.types, args.wait);
        let _open = if wait.is_zero() { None } else { caller.open_stream()? };
        let (jobs, unsent, room) = tokio::select! {
            pulled = self.broker.workers.pull(types, args.max_jobs, args.lease, wait, (room, caller.principal())) => pulled?,
            () = caller.ended() => return Err(caller.ended_error().into()),
        };
        let entries = jobs.len();
        let jobs = render::leased_jobs(jobs, &self.broker.workers.registry)?;
        let mut response = answer::with_room(v1::PullJobsResponse { jobs }, entries, room);
        response.extensions_mut().insert(OnceSent::new(move || unsent.sent()));
        Ok(response)
    }

    async fn settle_jobs(
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

    async fn extend_jobs(
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

    async fn report_progress(
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
}
