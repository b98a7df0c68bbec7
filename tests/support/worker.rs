//! A worker that speaks the protocol itself: tests see every message.

use howdah_proto::v1::{
    self, Ack, Nack, NewJob, Outcome, Settle, SettleResult, Subscribe, WorkRequest, WorkResponse,
    job_service_client::JobServiceClient, outcome, schedule_service_client::ScheduleServiceClient,
    task_type_service_client::TaskTypeServiceClient, work_request, work_response,
    worker_service_client::WorkerServiceClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use super::soon;

async fn channel(grpc: &str) -> Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(grpc.to_owned()).expect("address");
    soon("a connection", endpoint.connect()).await.expect("connect")
}

pub async fn jobs_client(grpc: &str) -> JobServiceClient<Channel> {
    JobServiceClient::new(channel(grpc).await).max_decoding_message_size(64 << 20)
}

pub async fn task_types_client(grpc: &str) -> TaskTypeServiceClient<Channel> {
    TaskTypeServiceClient::new(channel(grpc).await)
}

pub async fn schedules_client(grpc: &str) -> ScheduleServiceClient<Channel> {
    ScheduleServiceClient::new(channel(grpc).await)
}

pub async fn workers_client(grpc: &str) -> WorkerServiceClient<Channel> {
    WorkerServiceClient::new(channel(grpc).await).max_decoding_message_size(64 << 20)
}

/// A job of a type with a payload.
pub fn new_job(task_type: &str, payload: impl Into<Vec<u8>>) -> NewJob {
    NewJob { task_type: task_type.into(), payload: payload.into().into(), ..NewJob::default() }
}

/// The outcome of a job that went well.
pub fn ack(job: &v1::LeasedJob) -> Outcome {
    Outcome { id: job.id, token: job.token, outcome: Some(outcome::Outcome::Ack(Ack::default())) }
}

/// The outcome of a job that did not; it is tried again at once.
pub fn nack(job: &v1::LeasedJob, error: &str) -> Outcome {
    let nack = Nack {
        error: error.into(),
        retry_after: Some(std::time::Duration::ZERO.try_into().unwrap()),
        ..Nack::default()
    };
    Outcome { id: job.id, token: job.token, outcome: Some(outcome::Outcome::Nack(nack)) }
}

/// A worker on a stream.
pub struct Worker {
    send: mpsc::Sender<WorkRequest>,
    receive: Streaming<WorkResponse>,
    pub welcome: v1::Welcome,
    jobs: Vec<v1::LeasedJob>,
    settled: Vec<SettleResult>,
}

impl Worker {
    /// Subscribes to one type.
    pub async fn connect(grpc: &str, task_type: &str, window: i32) -> Self {
        Self::subscribe(grpc, Subscribe { task_type: task_type.into(), window, ..Subscribe::default() }).await
    }

    /// Subscribes; the first message must be a Welcome.
    pub async fn subscribe(grpc: &str, subscribe: Subscribe) -> Self {
        Self::try_subscribe(grpc, subscribe).await.expect("a welcome")
    }

    /// Subscribes, or tells why not.
    pub async fn try_subscribe(grpc: &str, subscribe: Subscribe) -> Result<Self, Status> {
        let (send, mut receive) = open(grpc).await;
        send.send(request(work_request::Message::Subscribe(subscribe))).await.expect("send");
        let first = soon("a welcome", receive.message()).await?;
        let Some(work_response::Message::Welcome(welcome)) = first.and_then(|m| m.message) else {
            panic!("the first message is not a welcome");
        };
        Ok(Self { send, receive, welcome, jobs: Vec::new(), settled: Vec::new() })
    }

    /// Sends a message.
    pub async fn send(&self, message: work_request::Message) {
        soon("room to send", self.send.send(request(message))).await.expect("the stream is open");
    }

    /// The next message but pings; `None` at the end of the stream.
    pub async fn message(&mut self) -> Result<Option<work_response::Message>, Status> {
        // One patience for all of them: pings come for ever.
        soon("a message", async {
            loop {
                match self.receive.message().await?.and_then(|m| m.message) {
                    Some(work_response::Message::Ping(_)) => {}
                    other => return Ok(other),
                }
            }
        })
        .await
    }

    /// The next job.
    pub async fn job(&mut self) -> v1::LeasedJob {
        while self.jobs.is_empty() {
            self.keep_next().await;
        }
        self.jobs.remove(0)
    }

    /// Jobs that came and were not looked at.
    pub fn buffered(&self) -> usize {
        self.jobs.len()
    }

    /// What became of the next outcome.
    pub async fn settled(&mut self) -> SettleResult {
        while self.settled.is_empty() {
            self.keep_next().await;
        }
        self.settled.remove(0)
    }

    async fn keep_next(&mut self) {
        match self.message().await.expect("an open stream") {
            Some(work_response::Message::Jobs(jobs)) => self.jobs.extend(jobs.jobs),
            Some(work_response::Message::Settled(settled)) => self.settled.extend(settled.results),
            other => panic!("unexpected: {other:?}"),
        }
    }

    /// Sends outcomes.
    pub async fn settle(&self, outcomes: Vec<Outcome>) {
        self.send(work_request::Message::Settle(Settle { outcomes })).await;
    }

    /// Acks a job, and waits until that is committed.
    pub async fn ack(&mut self, job: &v1::LeasedJob) -> SettleResult {
        self.settle(vec![ack(job)]).await;
        self.settled().await
    }

    /// The stream breaks, without a word.
    pub fn vanish(self) {}
}

/// An open stream without a first message.
pub async fn open(grpc: &str) -> (mpsc::Sender<WorkRequest>, Streaming<WorkResponse>) {
    let (send, receive) = mpsc::channel(64);
    let mut client = workers_client(grpc).await;
    let stream = soon("response headers", client.work(ReceiverStream::new(receive))).await.expect("a stream");
    (send, stream.into_inner())
}

fn request(message: work_request::Message) -> WorkRequest {
    WorkRequest { message: Some(message) }
}
