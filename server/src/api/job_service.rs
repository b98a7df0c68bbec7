//! `JobService`: enqueue, get, list, search, wait for, cancel, retry and discard jobs.

use std::{future::ready, time::Instant};

use howdah_proto::{Rpc, v1};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use super::{
    actor::actor,
    answer::{self, with_room},
    authenticate::{caller, counted},
    check,
    deadline::deadline,
    end::End,
    pace, page_token,
    pages::{Paged, Pages},
    permit,
    pipeline::{Bounds, InFlight, Storing, pipeline},
    render, trace_context,
};
use crate::{
    access::{Caller, Operation},
    broker::SharedBroker,
    error::Error,
    memory::Held,
    operate::{Ended, ReprioritizeQuery, WaitingCaller, wait::READ_TIMEOUT},
};

/// Service for producers and operators.
pub(super) struct JobService {
    broker: SharedBroker,
    /// Ends pipelines when cancelled; calls are completed.
    stopping: CancellationToken,
}

impl JobService {
    pub(super) fn new(broker: SharedBroker, stopping: CancellationToken) -> Self {
        Self { broker, stopping }
    }

    async fn room<T>(&self, request: &Request<T>, bytes: usize) -> Result<Held, Error> {
        answer::room(&self.broker.answers, request, bytes).await
    }

    fn pages(&self, caller: &Caller, request: &mut impl Paged) -> Result<Pages, Status> {
        Ok(Pages::open(&self.broker.page_token_key, caller.principal(), request)?)
    }
}

/// Checks one request, from a call or a pipeline, and queues it for intake.
async fn place(
    broker: SharedBroker,
    caller: Caller,
    jobs: Vec<v1::NewJob>,
    request_key: String,
    deadline: Option<Instant>,
) -> Storing {
    let placed = async {
        let (jobs, request) = check::enqueue(jobs, request_key, &broker.cluster())?;
        permit::enqueue(&broker, &caller, &jobs).await?;
        let request = request.map(|request| request.for_principal(caller.principal()));
        broker.intake.enqueue(jobs, request, deadline, caller.principal()).await
    };
    let placed = placed.await;
    Box::pin(async {
        let enqueued = placed?.stored().await?;
        Ok(enqueued.into_iter().map(render::enqueued).collect())
    })
}

/// Checks and stores the jobs of one gRPC or HTTP request.
pub(crate) async fn enqueue(
    broker: SharedBroker,
    caller: Caller,
    jobs: Vec<v1::NewJob>,
    request_key: String,
    deadline: Option<Instant>,
) -> Result<Vec<v1::EnqueuedJob>, Error> {
    pace::check(&caller, &jobs)?;
    place(broker, caller, jobs, request_key, deadline).await.await
}

fn refused(error: Error) -> Storing {
    Box::pin(ready(Err(error)))
}

/// Runs a pipeline within the limits and the memory of `broker`. `choose` selects the store of each request.
#[allow(clippy::async_yields_async, reason = "one future queues a request and returns another future that stores it")]
pub(super) fn pipeline_into<F>(
    broker: &SharedBroker,
    stopping: &CancellationToken,
    request: Request<Streaming<v1::StreamEnqueueRequest>>,
    choose: impl Fn(&[v1::NewJob]) -> F + Send + 'static,
) -> Result<Response<BoxStream<v1::StreamEnqueueResponse>>, Status>
where
    F: Future<Output = Result<SharedBroker, Error>> + Send + 'static,
{
    let caller = caller(&request)?;
    let bounds = Bounds::new(&broker.config().limits);
    let in_flight = InFlight::new(&broker.answers, &answer::peer(&request).accounts.answers);
    let (open, ended) = (caller.open_stream()?, End::new(&caller, stopping));
    let stopping = stopping.clone();
    let one = move |request: v1::StreamEnqueueRequest| {
        let (chosen, caller) = (choose(&request.jobs), caller.clone());
        let slowed = pace::take(&caller, &request.jobs).err().map(|exceeded| (exceeded, stopping.clone()));
        async move {
            if let Some((exceeded, stopping)) = slowed
                && let Err(error) = pace::wait(&caller, &request.jobs, exceeded, &stopping).await
            {
                return refused(error);
            }
            match chosen.await {
                Ok(broker) => place(broker, caller, request.jobs, request.request_key, None).await,
                Err(error) => refused(error),
            }
        }
    };
    let answers = pipeline(request.into_inner(), (bounds, in_flight), ended, one);
    Ok(Response::new(counted(answers, open)))
}

howdah_proto::job_service!(JobService);

impl JobService {
    pub(super) async fn enqueue_jobs(
        &self,
        request: Request<v1::EnqueueJobsRequest>,
    ) -> Result<Response<v1::EnqueueJobsResponse>, Status> {
        let (caller, deadline) = (caller(&request)?, deadline(request.metadata()));
        let (metadata, _, mut request) = request.into_parts();
        trace_context::give(metadata.as_ref(), &mut request.jobs);
        let jobs = enqueue(self.broker.clone(), caller, request.jobs, request.request_key, deadline).await?;
        Ok(Response::new(v1::EnqueueJobsResponse { jobs }))
    }

    #[allow(clippy::unused_async, reason = "like every method of the service")]
    pub(super) async fn stream_enqueue(
        &self,
        request: Request<Streaming<v1::StreamEnqueueRequest>>,
    ) -> Result<Response<BoxStream<v1::StreamEnqueueResponse>>, Status> {
        let broker = self.broker.clone();
        pipeline_into(&self.broker, &self.stopping, request, move |_| ready(Ok(broker.clone())))
    }

    pub(super) async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let caller = caller(&request)?;
        let room = self.room(&request, answer::page_bytes(1, &self.broker.cluster(), true)).await?;
        let id = request.into_inner().id;
        let job = self.broker.operator.get_job(id).await?;
        let job = job.and_then(|job| permit::seen(&caller, job)).ok_or_else(|| permit::no_job(id))?;
        Ok(with_room(v1::GetJobResponse { job: Some(render::job(job)) }, 1, room))
    }

    pub(super) async fn explain_job(
        &self,
        request: Request<v1::ExplainJobRequest>,
    ) -> Result<Response<v1::ExplainJobResponse>, Status> {
        let caller = caller(&request)?;
        let room = self.room(&request, answer::SHORT).await?;
        let id = request.into_inner().id;
        let may_read = |task_type: &str| permit::may(&caller, Operation::Read, task_type);
        let explained = self.broker.operator.explain_job(id, &may_read).await?;
        let explained = explained.ok_or_else(|| permit::no_job(id))?;
        let entries = explained.reasons.len();
        Ok(with_room(render::explanation(explained), entries, room))
    }

    pub(super) async fn list_jobs(
        &self,
        mut request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let caller = caller(&request)?;
        let pages = self.pages(&caller, request.get_mut())?;
        let query = check::list_jobs(request.get_ref())?;
        caller.check(Operation::Read, &query.task_type)?;
        if query.payload {
            caller.check(Operation::Payload, &query.task_type)?;
        }
        let bytes = answer::page_bytes(query.page_size, &self.broker.cluster(), query.payload);
        let room = self.room(&request, bytes).await?;
        let page = self.broker.operator.list_jobs(query).await?;
        let jobs: Vec<v1::Job> = page.jobs.into_iter().map(render::job).collect();
        let entries = jobs.len();
        let look = page.look;
        let answer = v1::ListJobsResponse {
            jobs,
            next_page_token: pages.seal(page.next.map(page_token::encode)),
            partial: look.partial,
            scanned_count: look.scanned_count,
            has_more: look.has_more,
        };
        Ok(with_room(answer, entries, room))
    }

    pub(super) async fn search_jobs(
        &self,
        mut request: Request<v1::SearchJobsRequest>,
    ) -> Result<Response<v1::SearchJobsResponse>, Status> {
        let caller = caller(&request)?;
        let pages = self.pages(&caller, request.get_mut())?;
        let cluster = self.broker.cluster();
        let query = check::search_jobs(request.get_ref().clone(), &cluster)?;
        let jobs = permit::search(&caller, &query)?;
        let room = self.room(&request, answer::page_bytes(jobs, &cluster, false)).await?;
        let mut found = self.broker.operator.search_jobs(&query).await?;
        let next = found.next.take();
        // Filters by type again: a job found by its id may have any type, and any other job may have moved to a type that the
        // caller may not read.
        found.jobs.retain(|job| permit::may(&caller, Operation::Read, &job.task_type));
        let entries = found.jobs.len() + found.skipped.len();
        let answer = v1::SearchJobsResponse {
            next_page_token: pages.seal(next.map(page_token::encode_search)),
            ..render::search_found(found)
        };
        Ok(with_room(answer, entries, room))
    }

    pub(super) async fn cancel_jobs(
        &self,
        request: Request<v1::CancelJobsRequest>,
    ) -> Result<Response<v1::CancelJobsResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::CancelJobs)?);
        let room = self.room(&request, answer::SHORT).await?;
        let mut request = request.into_inner();
        let pages = self.pages(&caller, &mut request)?;
        let selection = check::cancel_jobs(request, &self.broker.cluster())?;
        let selection = permit::own_selection(&self.broker, &caller, selection).await?;
        let (cancelled_ids, next) = self.broker.operator.cancel_jobs(selection, &by).await?;
        let next_page_token = pages.seal(next.map(page_token::encode));
        Ok(with_room(v1::CancelJobsResponse { cancelled_ids, next_page_token }, 0, room))
    }

    pub(super) async fn retry_jobs(
        &self,
        request: Request<v1::RetryJobsRequest>,
    ) -> Result<Response<v1::RetryJobsResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::RetryJobs)?);
        let room = self.room(&request, answer::SHORT).await?;
        let mut request = request.into_inner();
        let pages = self.pages(&caller, &mut request)?;
        let mut query = check::retry_jobs(request, &self.broker.cluster())?;
        query.selection = permit::own_selection(&self.broker, &caller, query.selection).await?;
        pace::may(&caller)?;
        let answer = self.broker.operator.retry_jobs(query, &by).await?;
        pace::force_take(&caller, answer.retried.len() + answer.revived.len(), 0);
        // The caller may know only its own dependent jobs; other callers' jobs may have been revived, too.
        let revived_ids = permit::own_jobs(&self.broker, &caller, answer.revived.into()).await?.ids;
        Ok(with_room(
            v1::RetryJobsResponse {
                retried_ids: answer.retried,
                key_held_ids: answer.key_held,
                revived_ids,
                next_page_token: pages.seal(answer.next.map(page_token::encode)),
            },
            0,
            room,
        ))
    }

    pub(super) async fn end_leases(
        &self,
        request: Request<v1::EndLeasesRequest>,
    ) -> Result<Response<v1::EndLeasesResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::EndLeases)?);
        let room = self.room(&request, answer::SHORT).await?;
        let (cluster, limits) = (self.broker.cluster(), &self.broker.config().limits);
        let (ids, error) = check::end_leases(request.into_inner(), &cluster, limits)?;
        let jobs = permit::own_jobs(&self.broker, &caller, ids.into()).await?;
        let ended_ids = self.broker.operator.end_leases(jobs, error.as_deref(), &by).await?;
        Ok(with_room(v1::EndLeasesResponse { ended_ids }, 0, room))
    }

    pub(super) async fn discard_jobs(
        &self,
        request: Request<v1::DiscardJobsRequest>,
    ) -> Result<Response<v1::DiscardJobsResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::DiscardJobs)?);
        let room = self.room(&request, answer::SHORT).await?;
        let mut request = request.into_inner();
        let pages = self.pages(&caller, &mut request)?;
        let selection = check::discard_jobs(request, &self.broker.cluster())?;
        let selection = permit::own_selection(&self.broker, &caller, selection).await?;
        let (discarded_ids, next) = self.broker.operator.discard_jobs(selection, &by).await?;
        let next_page_token = pages.seal(next.map(page_token::encode));
        Ok(with_room(v1::DiscardJobsResponse { discarded_ids, next_page_token }, 0, room))
    }

    pub(super) async fn list_error_groups(
        &self,
        request: Request<v1::ListErrorGroupsRequest>,
    ) -> Result<Response<v1::ListErrorGroupsResponse>, Status> {
        let (task_type, at_most) = check::list_error_groups(request.get_ref())?;
        permit::one_or_all(&caller(&request)?, Operation::Read, task_type.as_ref())?;
        let room = self.room(&request, answer::MEDIUM).await?;
        let (groups, partial) = self.broker.operator.error_groups(task_type, at_most).await?;
        let groups: Vec<_> = groups.into_iter().map(render::error_group).collect();
        let entries = groups.len();
        Ok(with_room(v1::ListErrorGroupsResponse { groups, partial }, entries, room))
    }

    pub(super) async fn wait_jobs(
        &self,
        request: Request<v1::WaitJobsRequest>,
    ) -> Result<Response<BoxStream<v1::WaitJobsResponse>>, Status> {
        let caller = caller(&request)?;
        let accounts = answer::peer(&request).accounts;
        let (ids, timeout) = check::wait_jobs(request.into_inner(), &self.broker.cluster())?;
        let hidden = permit::foreign(&self.broker, &caller, Operation::Read, &ids).await?;
        let (answers, ended) = mpsc::channel(1);
        let (operator, end) = (self.broker.operator.clone(), End::new(&caller, &self.stopping));
        let open = caller.open_stream()?;
        let (account, job_quota) = (accounts.waits.clone(), accounts.waited.clone());
        let to = WaitingCaller { answers: answers.clone(), account, job_quota };
        tokio::spawn(async move {
            tokio::select! {
                () = operator.wait_jobs(ids, hidden, timeout, to) => {}
                error = end.reached("call another one") => {
                    // Waits for a limited time, because the client may not have read the previous answer yet.
                    let _ = answers.send_timeout(Ended { job: Err(error), room: None }, READ_TIMEOUT).await;
                }
            }
        });
        // The transport polls for the next message after it has sent the previous one. Only then is the previous message's memory
        // free.
        let answers = futures::stream::unfold((ended, caller, None), |(mut ended, caller, sent)| async move {
            drop(sent);
            let Ended { job, room } = ended.recv().await?;
            let job = job.and_then(|job| {
                let id = job.id;
                permit::seen(&caller, job).ok_or_else(|| permit::no_job(id))
            });
            let answer = job.map(|job| v1::WaitJobsResponse { job: Some(render::job(job)) }).map_err(Status::from);
            Some((answer, (ended, caller, room)))
        });
        Ok(Response::new(counted(answers, open)))
    }

    pub(super) async fn reprioritize_jobs(
        &self,
        request: Request<v1::ReprioritizeJobsRequest>,
    ) -> Result<Response<v1::ReprioritizeJobsResponse>, Status> {
        let (caller, by) = (caller(&request)?, actor(&self.broker, &request, Rpc::ReprioritizeJobs)?);
        let room = self.room(&request, answer::SHORT).await?;
        let mut request = request.into_inner();
        let pages = self.pages(&caller, &mut request)?;
        let (query, priority) = check::reprioritize_jobs(request, &self.broker.cluster())?;
        let query = match query {
            ReprioritizeQuery::Ids(jobs) => {
                ReprioritizeQuery::Ids(permit::own_jobs(&self.broker, &caller, jobs).await?)
            }
            ReprioritizeQuery::Type(task_type, from) => {
                caller.check(Operation::Operate, &task_type)?;
                ReprioritizeQuery::Type(task_type, from)
            }
        };
        let done = self.broker.operator.reprioritize(query, priority, &by).await?;
        Ok(with_room(
            v1::ReprioritizeJobsResponse {
                reprioritized_ids: done.ids,
                job_count: done.jobs,
                next_page_token: pages.seal(done.next.map(page_token::encode)),
            },
            0,
            room,
        ))
    }
}
