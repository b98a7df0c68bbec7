//! A fake broker in this process, which the test controls message by message.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    unreachable_pub,
    missing_docs,
    reason = "each test binary uses only a part of this module, and tests fail by panicking"
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

/// Timeout after which a test counts as hanging. It is long, because test machines may be slow and no test measures time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Fails the test if the future does not end within `TIMEOUT`.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("nothing happened for {TIMEOUT:?}"))
}

/// A fake broker. A test takes each stream and call as it arrives, and answers it message by message.
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

    /// Refuses the next Work stream before any response.
    pub fn refuse_next_stream(&self, status: Status) {
        self.refuse_streams.send(status).unwrap();
    }

    /// Waits for the next Work stream and its Subscribe. The test must send the Welcome.
    pub async fn stream(&mut self) -> FakeStream {
        let (requests, responses) = within(self.streams.recv()).await.unwrap().unwrap();
        let mut stream = FakeStream { requests, responses, subscribe: Subscribe::default() };
        let FromWorker::Subscribe(subscribe) = stream.next().await else {
            panic!("the first message is not Subscribe");
        };
        stream.subscribe = subscribe;
        stream
    }

    /// Waits for the next Work stream, and sends a Welcome for session `s1` that keeps all leases.
    pub async fn welcomed(&mut self) -> FakeStream {
        let stream = self.stream().await;
        stream.welcome(stream.welcome_keeping_all()).await;
        stream
    }

    /// Waits for the next `StreamEnqueue` stream.
    pub async fn pipeline(&mut self) -> Pipeline {
        within(self.pipelines.recv()).await.unwrap()
    }

    /// Waits for the next `EnqueueJobs` call.
    pub async fn call(&mut self) -> EnqueueCall {
        within(self.calls.recv()).await.unwrap()
    }
}

pub fn prost_duration(duration: Duration) -> prost_types::Duration {
    duration.try_into().unwrap()
}

/// A leased job of type `t`, with token `id * 10`.
pub fn job(id: i64) -> LeasedJob {
    LeasedJob { id, token: id * 10, task_type: "t".into(), attempt: 1, max_attempts: 10, ..LeasedJob::default() }
}
