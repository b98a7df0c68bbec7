//! A broker in this process that does what the test says, one message at a time.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    unreachable_pub,
    missing_docs,
    reason = "shared by tests that each use a part of it, and that fail by panicking"
)]

mod pipeline;
mod service;
mod stream;

use std::{future::Future, net::SocketAddr, time::Duration};

use howdah_client::{
    Client,
    proto::{
        LeasedJob, Subscribe, WorkRequest, WorkResponse, job_service_server::JobServiceServer,
        work_request::Message as FromWorker, worker_service_server::WorkerServiceServer,
    },
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Status, Streaming, transport::Server};

use self::service::Service;
pub use self::{
    pipeline::{EnqueueCall, Pipeline},
    stream::FakeStream,
};

/// The longest that anything may take before it counts as hanging. Generous: machines are slow at times, and no test
/// measures time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fails the test instead of letting it hang.
pub async fn within<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(PATIENCE, what).await.unwrap_or_else(|_| panic!("nothing happened for {PATIENCE:?}"))
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

type RawStream = (Streaming<WorkRequest>, mpsc::Sender<Result<WorkResponse, Status>>);

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
            .add_service(WorkerServiceServer::new(worker_service).max_decoding_message_size(64 << 20))
            .add_service(JobServiceServer::new(service()).max_decoding_message_size(64 << 20))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { server.await.unwrap() });
        Self { address, streams, refuse_streams, pipelines, calls, server }
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
        let mut stream = FakeStream { requests, responses, subscribe: Subscribe::default() };
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

    /// The next `StreamEnqueue` stream.
    pub async fn pipeline(&mut self) -> Pipeline {
        within(self.pipelines.recv()).await.unwrap()
    }

    /// The next `EnqueueJobs` call.
    pub async fn call(&mut self) -> EnqueueCall {
        within(self.calls.recv()).await.unwrap()
    }
}

pub fn prost_duration(duration: Duration) -> prost_types::Duration {
    duration.try_into().unwrap()
}

/// Job `id`, with token `id * 10`, of type `t`.
pub fn job(id: i64) -> LeasedJob {
    LeasedJob { id, token: id * 10, task_type: "t".into(), attempt: 1, max_attempts: 10, ..LeasedJob::default() }
}
