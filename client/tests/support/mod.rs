//! A broker in this process that does what the test says, one message at a time.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    unreachable_pub,
    missing_docs,
    reason = "shared by tests that each use a part of it, and that fail by panicking"
)]

use std::{future::Future, net::SocketAddr, time::Duration};

use howdah_client::{
    Client,
    proto::{
        self, EnqueueJobsRequest, EnqueueJobsResponse, EnqueuedJob, LeasedJob, Outcome,
        SettleResult, SettleStatus, StreamEnqueueRequest, StreamEnqueueResponse, Subscribe,
        Welcome, WorkRequest, WorkResponse,
        job_service_server::{JobService, JobServiceServer},
        work_request::Message as FromWorker,
        work_response::Message as ToWorker,
        worker_service_server::{WorkerService, WorkerServiceServer},
    },
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

type Answer<T> = Result<Response<T>, Status>;

/// Fails the test instead of letting it hang.
pub async fn within<F: Future>(what: F) -> F::Output {
    match tokio::time::timeout(Duration::from_secs(20), what).await {
        Ok(output) => output,
        Err(_) => panic!("nothing happened for 20 s"),
    }
}

/// A broker; its tests take streams and calls from it as they come.
pub struct FakeBroker {
    pub address: SocketAddr,
    streams: mpsc::UnboundedReceiver<Result<RawStream, Status>>,
    refuse_streams: mpsc::UnboundedSender<Status>,
    pipelines: mpsc::UnboundedReceiver<Pipeline>,
    calls: mpsc::UnboundedReceiver<EnqueueCall>,
    server: JoinHandle<()>,
}

type RawStream = (
    Streaming<WorkRequest>,
    mpsc::Sender<Result<WorkResponse, Status>>,
);

struct Service {
    streams: mpsc::UnboundedSender<Result<RawStream, Status>>,
    refuse_streams: std::sync::Mutex<mpsc::UnboundedReceiver<Status>>,
    pipelines: mpsc::UnboundedSender<Pipeline>,
    calls: mpsc::UnboundedSender<EnqueueCall>,
}

impl Drop for FakeBroker {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeBroker {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stream_sender, streams) = mpsc::unbounded_channel();
        let (refuse_streams, refusals) = mpsc::unbounded_channel();
        let (pipeline_sender, pipelines) = mpsc::unbounded_channel();
        let (call_sender, calls) = mpsc::unbounded_channel();
        let service = || Service {
            streams: stream_sender.clone(),
            refuse_streams: std::sync::Mutex::new(mpsc::unbounded_channel().1),
            pipelines: pipeline_sender.clone(),
            calls: call_sender.clone(),
        };
        let mut worker_service = service();
        worker_service.refuse_streams = std::sync::Mutex::new(refusals);
        let server = Server::builder()
            .add_service(
                WorkerServiceServer::new(worker_service).max_decoding_message_size(64 << 20),
            )
            .add_service(JobServiceServer::new(service()).max_decoding_message_size(64 << 20))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { server.await.unwrap() });
        Self {
            address,
            streams,
            refuse_streams,
            pipelines,
            calls,
            server,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.url()).await.unwrap()
    }

    /// The next Work stream will be refused, before anything is answered.
    pub fn refuse_next_stream(&self, status: Status) {
        self.refuse_streams.send(status).unwrap();
    }

    /// The next Work stream, after its Subscribe; not yet welcomed.
    pub async fn stream(&mut self) -> FakeStream {
        let (requests, responses) = within(self.streams.recv()).await.unwrap().unwrap();
        let mut stream = FakeStream {
            requests,
            responses,
            subscribe: Subscribe::default(),
        };
        let FromWorker::Subscribe(subscribe) = stream.next().await else {
            panic!("the first message is not Subscribe");
        };
        stream.subscribe = subscribe;
        stream
    }

    /// The next Work stream, welcomed as session `s1` with everything kept.
    pub async fn welcomed(&mut self) -> FakeStream {
        let stream = self.stream().await;
        stream.welcome(stream.welcome_keeping_all()).await;
        stream
    }

    /// The next StreamEnqueue stream.
    pub async fn pipeline(&mut self) -> Pipeline {
        within(self.pipelines.recv()).await.unwrap()
    }

    /// The next EnqueueJobs call.
    pub async fn call(&mut self) -> EnqueueCall {
        within(self.calls.recv()).await.unwrap()
    }

    /// Whether a StreamEnqueue stream was opened that no test has taken.
    pub fn has_pipeline(&mut self) -> bool {
        !self.pipelines.is_empty()
    }
}

/// One Work stream, from the broker's side.
pub struct FakeStream {
    requests: Streaming<WorkRequest>,
    responses: mpsc::Sender<Result<WorkResponse, Status>>,
    pub subscribe: Subscribe,
}

impl FakeStream {
    pub fn welcome_keeping_all(&self) -> Welcome {
        Welcome {
            session_id: "s1".into(),
            kept: self.subscribe.held.clone(),
            ping_interval: Some(prost_duration(Duration::from_secs(10))),
            session_grace: Some(prost_duration(Duration::from_secs(10))),
            broker: "fake".into(),
            ..Welcome::default()
        }
    }

    pub async fn welcome(&self, welcome: Welcome) {
        self.send(ToWorker::Welcome(welcome)).await;
    }

    pub async fn send(&self, message: ToWorker) {
        let message = Some(message);
        within(self.responses.send(Ok(WorkResponse { message })))
            .await
            .unwrap();
    }

    pub async fn push(&self, jobs: Vec<LeasedJob>) {
        self.send(ToWorker::Jobs(proto::Jobs { jobs })).await;
    }

    /// What the worker says next.
    pub async fn next(&mut self) -> FromWorker {
        let request = within(self.requests.message()).await.unwrap();
        request.expect("the worker has closed").message.unwrap()
    }

    /// The worker's next message must be a Settle.
    pub async fn settle(&mut self) -> Vec<Outcome> {
        match self.next().await {
            FromWorker::Settle(settle) => settle.outcomes,
            other => panic!("not a Settle but {other:?}"),
        }
    }

    /// So many outcomes, in however many messages.
    pub async fn outcomes(&mut self, count: usize) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while outcomes.len() < count {
            outcomes.extend(self.settle().await);
        }
        assert_eq!(outcomes.len(), count);
        outcomes
    }

    pub async fn answer(&self, outcomes: &[Outcome], status: SettleStatus, message: &str) {
        let result = |outcome: &Outcome| SettleResult {
            id: outcome.id,
            token: outcome.token,
            status: status.into(),
            message: message.into(),
        };
        let results = outcomes.iter().map(result).collect();
        self.send(ToWorker::Settled(proto::Settled { results }))
            .await;
    }

    pub async fn confirm(&self, outcomes: &[Outcome]) {
        self.answer(outcomes, SettleStatus::Ok, "").await;
    }

    /// The connection breaks.
    pub async fn break_off(self) {
        let broken = Err(Status::unavailable("gone"));
        within(self.responses.send(broken)).await.unwrap();
    }

    pub async fn drain(&self, reason: proto::DrainReason, reconnect_after: Option<Duration>) {
        let drain = proto::Drain {
            reason: reason.into(),
            reconnect_after: reconnect_after.map(prost_duration),
        };
        self.send(ToWorker::Drain(drain)).await;
    }

    /// The worker asks for a drain, gets it, and closes once nothing is left.
    pub async fn finish(mut self) {
        assert_eq!(self.next().await, FromWorker::Drain(proto::DrainRequest {}));
        self.drain(proto::DrainReason::Requested, None).await;
        self.closed().await;
    }

    /// The worker closes its side.
    pub async fn closed(&mut self) {
        let end = within(self.requests.message()).await;
        assert!(matches!(end, Ok(None)), "not closed: {end:?}");
    }
}

/// One StreamEnqueue stream, from the broker's side.
pub struct Pipeline {
    requests: Streaming<StreamEnqueueRequest>,
    responses: mpsc::Sender<Result<StreamEnqueueResponse, Status>>,
}

impl Pipeline {
    pub async fn next(&mut self) -> StreamEnqueueRequest {
        within(self.requests.message()).await.unwrap().unwrap()
    }

    /// Nothing more comes.
    pub async fn closed(&mut self) {
        let end = within(self.requests.message()).await;
        assert!(matches!(end, Ok(None)), "not closed: {end:?}");
    }

    /// Stores the jobs under the ids from `first` on.
    pub async fn store(&self, request: &StreamEnqueueRequest, first: i64, is_new: bool) {
        let ids = first..first + request.jobs.len() as i64;
        let jobs = ids.map(|id| EnqueuedJob { id, is_new }).collect();
        self.answer(request, jobs, None).await;
    }

    pub async fn refuse(&self, request: &StreamEnqueueRequest, code: tonic::Code, field: &str) {
        let error = proto::RequestError {
            code: code.into(),
            message: format!("{field} is bad"),
            field: field.into(),
            reason: "INVALID_FIELD".into(),
        };
        self.answer(request, Vec::new(), Some(error)).await;
    }

    async fn answer(
        &self,
        request: &StreamEnqueueRequest,
        jobs: Vec<EnqueuedJob>,
        error: Option<proto::RequestError>,
    ) {
        let answer = StreamEnqueueResponse {
            sequence: request.sequence,
            jobs,
            error,
        };
        within(self.responses.send(Ok(answer))).await.unwrap();
    }

    pub async fn break_off(self, status: Status) {
        within(self.responses.send(Err(status))).await.unwrap();
    }
}

/// One EnqueueJobs call.
pub struct EnqueueCall {
    pub request: EnqueueJobsRequest,
    reply: oneshot::Sender<Result<EnqueueJobsResponse, Status>>,
}

impl EnqueueCall {
    pub fn store(self, first: i64, is_new: bool) {
        let ids = first..first + self.request.jobs.len() as i64;
        let jobs = ids.map(|id| EnqueuedJob { id, is_new }).collect();
        self.reply.send(Ok(EnqueueJobsResponse { jobs })).unwrap();
    }

    pub fn fail(self, status: Status) {
        self.reply.send(Err(status)).unwrap();
    }
}

pub fn prost_duration(duration: Duration) -> prost_types::Duration {
    duration.try_into().unwrap()
}

/// Job `id`, with token `id * 10`, of type `t`.
pub fn job(id: i64) -> LeasedJob {
    LeasedJob {
        id,
        token: id * 10,
        task_type: "t".into(),
        attempt: 1,
        max_attempts: 10,
        ..LeasedJob::default()
    }
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
        self.streams
            .send(stream)
            .map_err(|_| Status::unavailable("over"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn pull_jobs(
        &self,
        _: Request<proto::PullJobsRequest>,
    ) -> Answer<proto::PullJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn settle_jobs(
        &self,
        _: Request<proto::SettleJobsRequest>,
    ) -> Answer<proto::SettleJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn extend_jobs(
        &self,
        _: Request<proto::ExtendJobsRequest>,
    ) -> Answer<proto::ExtendJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }
}

#[tonic::async_trait]
impl JobService for Service {
    type StreamEnqueueStream = ReceiverStream<Result<StreamEnqueueResponse, Status>>;

    async fn enqueue_jobs(
        &self,
        request: Request<EnqueueJobsRequest>,
    ) -> Answer<EnqueueJobsResponse> {
        let (reply, answer) = oneshot::channel();
        let request = request.into_inner();
        let over = || Status::unavailable("over");
        self.calls
            .send(EnqueueCall { request, reply })
            .map_err(|_| over())?;
        answer.await.map_err(|_| over())?.map(Response::new)
    }

    async fn stream_enqueue(
        &self,
        request: Request<Streaming<StreamEnqueueRequest>>,
    ) -> Answer<Self::StreamEnqueueStream> {
        let (responses, outgoing) = mpsc::channel(16);
        let pipeline = Pipeline {
            requests: request.into_inner(),
            responses,
        };
        self.pipelines
            .send(pipeline)
            .map_err(|_| Status::unavailable("over"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn get_job(
        &self,
        request: Request<proto::GetJobRequest>,
    ) -> Answer<proto::GetJobResponse> {
        let id = request.into_inner().id;
        if id == 1 {
            let job = proto::Job {
                id,
                ..proto::Job::default()
            };
            return Ok(Response::new(proto::GetJobResponse { job: Some(job) }));
        }
        Err(Status::not_found("no such job"))
    }

    async fn list_jobs(
        &self,
        _: Request<proto::ListJobsRequest>,
    ) -> Answer<proto::ListJobsResponse> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn cancel_jobs(
        &self,
        request: Request<proto::CancelJobsRequest>,
    ) -> Answer<proto::CancelJobsResponse> {
        let cancelled_ids = request.into_inner().ids;
        Ok(Response::new(proto::CancelJobsResponse { cancelled_ids }))
    }
}
