//! The gRPC services of the fake broker, which pass streams and calls to the test.

use howdah_client::proto::{
    self, EnqueueJobsRequest, EnqueueJobsResponse, StreamEnqueueRequest, StreamEnqueueResponse, WorkRequest,
    WorkResponse, job_service_server::JobService, worker_service_server::WorkerService,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{EnqueueCall, Pipeline, RawStream};

type Answer<T> = Result<Response<T>, Status>;

pub(super) struct Service {
    pub(super) streams: mpsc::UnboundedSender<Result<RawStream, Status>>,
    pub(super) refuse_streams: std::sync::Mutex<mpsc::UnboundedReceiver<Status>>,
    pub(super) pipelines: mpsc::UnboundedSender<Pipeline>,
    pub(super) calls: mpsc::UnboundedSender<EnqueueCall>,
}

#[tonic::async_trait]
impl WorkerService for Service {
    type WorkStream = ReceiverStream<Result<WorkResponse, Status>>;

    async fn work(&self, request: Request<Streaming<WorkRequest>>) -> Answer<Self::WorkStream> {
        if let Ok(status) = self.refuse_streams.lock().unwrap().try_recv() {
            return Err(status);
        }
        let (responses, outgoing) = mpsc::channel(16);
        let stream = Ok((request.into_inner(), responses));
        self.streams.send(stream).map_err(|_| Status::unavailable("over"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn pull_jobs(&self, _: Request<proto::PullJobsRequest>) -> Answer<proto::PullJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn settle_jobs(&self, _: Request<proto::SettleJobsRequest>) -> Answer<proto::SettleJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn extend_jobs(&self, _: Request<proto::ExtendJobsRequest>) -> Answer<proto::ExtendJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn report_progress(&self, _: Request<proto::ReportProgressRequest>) -> Answer<proto::ReportProgressResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn get_results(&self, _: Request<proto::GetResultsRequest>) -> Answer<proto::GetResultsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn list_workers(&self, _: Request<proto::ListWorkersRequest>) -> Answer<proto::ListWorkersResponse> {
        Err(Status::unimplemented("not in these tests"))
    }
}

#[tonic::async_trait]
impl JobService for Service {
    type StreamEnqueueStream = ReceiverStream<Result<StreamEnqueueResponse, Status>>;

    async fn enqueue_jobs(&self, request: Request<EnqueueJobsRequest>) -> Answer<EnqueueJobsResponse> {
        let (reply, answer) = oneshot::channel();
        let request = request.into_inner();
        let over = || Status::unavailable("over");
        self.calls.send(EnqueueCall { request, reply }).map_err(|_| over())?;
        answer.await.map_err(|_| over())?.map(Response::new)
    }

    async fn stream_enqueue(
        &self,
        request: Request<Streaming<StreamEnqueueRequest>>,
    ) -> Answer<Self::StreamEnqueueStream> {
        let (responses, outgoing) = mpsc::channel(16);
        let pipeline = Pipeline { requests: request.into_inner(), responses };
        self.pipelines.send(pipeline).map_err(|_| Status::unavailable("over"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn get_job(&self, request: Request<proto::GetJobRequest>) -> Answer<proto::GetJobResponse> {
        let id = request.into_inner().id;
        if id == 1 {
            let job = proto::Job { id, ..proto::Job::default() };
            return Ok(Response::new(proto::GetJobResponse { job: Some(job) }));
        }
        Err(Status::not_found("no such job"))
    }

    async fn explain_job(&self, _: Request<proto::ExplainJobRequest>) -> Answer<proto::ExplainJobResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn search_jobs(&self, _: Request<proto::SearchJobsRequest>) -> Answer<proto::SearchJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn list_jobs(&self, _: Request<proto::ListJobsRequest>) -> Answer<proto::ListJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    type WaitJobsStream = ReceiverStream<Result<proto::WaitJobsResponse, Status>>;

    async fn wait_jobs(&self, _: Request<proto::WaitJobsRequest>) -> Answer<Self::WaitJobsStream> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn cancel_jobs(&self, request: Request<proto::CancelJobsRequest>) -> Answer<proto::CancelJobsResponse> {
        let cancelled_ids = request.into_inner().ids;
        Ok(Response::new(proto::CancelJobsResponse { cancelled_ids, ..Default::default() }))
    }

    async fn rerun_jobs(&self, _: Request<proto::RerunJobsRequest>) -> Answer<proto::RerunJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn retry_jobs(&self, _: Request<proto::RetryJobsRequest>) -> Answer<proto::RetryJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn end_leases(&self, _: Request<proto::EndLeasesRequest>) -> Answer<proto::EndLeasesResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn discard_jobs(&self, _: Request<proto::DiscardJobsRequest>) -> Answer<proto::DiscardJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn list_error_groups(
        &self,
        _: Request<proto::ListErrorGroupsRequest>,
    ) -> Answer<proto::ListErrorGroupsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn reprioritize_jobs(
        &self,
        _: Request<proto::ReprioritizeJobsRequest>,
    ) -> Answer<proto::ReprioritizeJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }
}
