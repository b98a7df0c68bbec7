//! A worker that uses the protocol directly, so that tests see every message.

use std::collections::HashSet;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use howdah_proto::v1::{
    self, CancelledJob, Drain, DrainRequest, Extend, Extension, Lease, LeasedJob, Outcome, Progress, ProgressReport,
    Settle, SettleResult, SettleStatus, Subscribe, Window, WorkRequest, WorkResponse,
    outcome::Outcome as Kind,
    work_request,
    work_response::{self, Message},
};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::{
    OutcomeOptions, ack,
    clients::{Bearer, open_as},
    nack, release, snooze, wire, with_timeout,
};

/// A worker on a stream, with the messages that it has received and the test has not read yet.
pub struct Worker {
    send: mpsc::Sender<WorkRequest>,
    receive: Streaming<WorkResponse>,
    pub welcome: v1::Welcome,
    jobs: Vec<LeasedJob>,
    settled: Vec<SettleResult>,
    cancelled: Vec<CancelledJob>,
}

/// Returns the lease of a job.
pub fn lease(job: &LeasedJob) -> Lease {
    Lease { id: job.id, token: job.token }
}

// Opening the stream.
impl Worker {
    /// Subscribes. The broker's first message must be a `Welcome`.
    pub async fn subscribe(grpc: &str, subscribe: Subscribe) -> Self {
        Self::try_subscribe(grpc, subscribe).await.expect("a welcome")
    }

    /// Subscribes to one task type with the short form of `Subscribe`.
    pub async fn connect(grpc: &str, task_type: &str, window: i32) -> Self {
        Self::subscribe(grpc, Subscribe { task_type: task_type.into(), window, ..Subscribe::default() }).await
    }

    /// Subscribes. Returns the status if the broker refuses.
    pub async fn try_subscribe(grpc: &str, subscribe: Subscribe) -> Result<Self, Status> {
        Self::try_subscribe_as(grpc, Bearer::default(), subscribe).await
    }

    /// Subscribes with a credential. Returns the status if the broker refuses.
    pub async fn try_subscribe_as(grpc: &str, bearer: Bearer, subscribe: Subscribe) -> Result<Self, Status> {
        let (send, mut receive) = open_as(grpc, bearer).await?;
        send.send(request(work_request::Message::Subscribe(subscribe))).await.expect("send");
        let first = with_timeout("a welcome", receive.message()).await?;
        let Some(Message::Welcome(welcome)) = first.and_then(|m| m.message) else {
            panic!("the first message is not a welcome");
        };
        Ok(Self { send, receive, welcome, jobs: Vec::new(), settled: Vec::new(), cancelled: Vec::new() })
    }

    /// Sends a message.
    pub async fn send(&self, message: work_request::Message) {
        with_timeout("room to send", self.send.send(request(message))).await.expect("the stream is open");
    }

    /// Returns the next message that is not a ping; `None` at the end of the stream.
    pub async fn message(&mut self) -> Result<Option<Message>, Status> {
        // Uses one timeout for all messages, because pings would restart a timeout per message forever.
        with_timeout("a message", async {
            loop {
                match self.receive.message().await?.and_then(|m| m.message) {
                    Some(Message::Ping(_)) => self.send(work_request::Message::Pong(v1::Pong {})).await,
                    other => return Ok(other),
                }
            }
        })
        .await
    }

    /// Answers the next `count` pings. Fails if another message comes.
    pub async fn answer_pings(&mut self, count: usize) {
        for _ in 0..count {
            match with_timeout("a ping", self.receive.message()).await.expect("an open stream").and_then(|m| m.message)
            {
                Some(Message::Ping(_)) => self.send(work_request::Message::Pong(v1::Pong {})).await,
                other => panic!("no ping: {other:?}"),
            }
        }
    }

    /// Sends nothing, not even a Pong, until the broker ends the stream. Returns the status of the stream.
    pub async fn silent(&mut self) -> Status {
        let end = async {
            loop {
                match self.receive.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("the stream ended without an error"),
                    Err(status) => return status,
                }
            }
        };
        with_timeout("the end of the stream", end).await
    }

    /// Drops the worker, which breaks its stream without a message.
    pub fn vanish(self) {}

    async fn keep_next(&mut self) {
        match self.message().await.expect("an open stream") {
            Some(Message::Jobs(jobs)) => self.jobs.extend(jobs.jobs),
            Some(Message::Settled(settled)) => self.settled.extend(settled.results),
            other => panic!("unexpected: {other:?}"),
        }
    }
}

// Methods that read messages from the broker.
impl Worker {
    /// The next job.
    pub async fn next(&mut self) -> LeasedJob {
        while self.jobs.is_empty() {
            self.keep_next().await;
        }
        self.jobs.remove(0)
    }

    /// Receives the next `count` jobs.
    pub async fn take(&mut self, count: usize) -> Vec<LeasedJob> {
        let mut jobs = Vec::new();
        while jobs.len() < count {
            jobs.push(self.next().await);
        }
        jobs
    }

    /// Number of jobs that the worker has received and the test has not read.
    pub fn buffered(&self) -> usize {
        self.jobs.len()
    }

    /// Returns the result of the next settled job.
    pub async fn settled(&mut self) -> SettleResult {
        while self.settled.is_empty() {
            self.keep_next().await;
        }
        self.settled.remove(0)
    }

    /// Returns the next cancelled job.
    pub async fn cancelled(&mut self) -> CancelledJob {
        if self.cancelled.is_empty() {
            match self.message().await.expect("an open stream") {
                Some(Message::Cancel(cancel)) if !cancel.jobs.is_empty() => self.cancelled = cancel.jobs,
                other => panic!("no cancel: {other:?}"),
            }
        }
        self.cancelled.remove(0)
    }

    /// Returns `count` leases that the worker reported as held and has lost. If the broker cannot tell at once, it lists a
    /// lease as kept in `Welcome` and cancels it later.
    pub async fn lost(&mut self, count: usize) -> Vec<Lease> {
        let (mut lost, mut later) = (self.welcome.lost.clone(), HashSet::new());
        while lost.len() < count {
            let next = self.cancelled().await;
            for job in [next].into_iter().chain(std::mem::take(&mut self.cancelled)) {
                later.insert((job.id, job.token));
                lost.push(Lease::new(job.id, job.token));
            }
        }
        self.welcome.kept.retain(|lease| !later.contains(&(lease.id, lease.token)));
        lost
    }

    /// Reads the next message, which must be a `Drain`.
    pub async fn drained(&mut self) -> Drain {
        match self.message().await.expect("an open stream") {
            Some(Message::Drain(drain)) => drain,
            other => panic!("no drain: {other:?}"),
        }
    }
}

// Methods that send messages to the broker.
impl Worker {
    /// Changes the window of a task type.
    pub async fn window(&self, task_type: &str, jobs: i32) {
        self.send(work_request::Message::Window(Window { task_type: task_type.into(), jobs, bytes: 0 })).await;
    }

    /// Sends a ping and waits for the response. The broker has then read all earlier messages of the worker.
    pub async fn ping(&mut self) {
        self.send(work_request::Message::Ping(v1::Ping {})).await;
        let answer = async {
            loop {
                match self.receive.message().await.expect("an open stream").and_then(|m| m.message) {
                    Some(Message::Pong(_)) => return,
                    Some(Message::Ping(_)) => {}
                    Some(Message::Jobs(jobs)) => self.jobs.extend(jobs.jobs),
                    Some(Message::Settled(settled)) => self.settled.extend(settled.results),
                    other => panic!("unexpected: {other:?}"),
                }
            }
        };
        with_timeout("an answer", answer).await;
    }

    /// Starts the worker's drain, after which the broker sends no further jobs.
    pub async fn drain(&self) {
        self.send(work_request::Message::Drain(DrainRequest {})).await;
    }

    pub fn ack(&mut self, job: &LeasedJob) -> Settling<'_> {
        Settling { outcome: ack(job), worker: self }
    }

    /// Nacks a job. The retry policy decides about the next attempt.
    pub fn nack(&mut self, job: &LeasedJob, error: &str) -> Settling<'_> {
        Settling { outcome: nack(job, error), worker: self }
    }

    pub fn snooze(&mut self, job: &LeasedJob, delay: Duration) -> Settling<'_> {
        Settling { outcome: snooze(job, delay), worker: self }
    }

    pub fn release(&mut self, job: &LeasedJob) -> Settling<'_> {
        Settling { outcome: release(job), worker: self }
    }

    /// Sends outcomes in one message, without waiting for their results.
    pub async fn settle(&self, outcomes: Vec<Outcome>) {
        self.send(work_request::Message::Settle(Settle { outcomes })).await;
    }

    /// Extends the lease of a job. The next message must be the result.
    pub async fn extend(&mut self, job: &LeasedJob, duration: Duration) -> SettleStatus {
        let extension = Extension { id: job.id, token: job.token, duration: Some(wire(duration)) };
        self.send(work_request::Message::Extend(Extend { extensions: vec![extension] })).await;
        match self.message().await.expect("an open stream") {
            Some(Message::Extended(extended)) => extended.results[0].status(),
            other => panic!("no answer: {other:?}"),
        }
    }

    /// Reports the progress of jobs and reads the results from the next messages. With several stores, the broker sends refusals in
    /// separate messages.
    pub async fn report(&mut self, reports: Vec<ProgressReport>) -> Vec<SettleResult> {
        let (count, mut results) = (reports.len(), Vec::new());
        self.send(work_request::Message::Progress(Progress { reports })).await;
        while results.len() < count {
            match self.message().await.expect("an open stream") {
                Some(work_response::Message::Progressed(progressed)) => results.extend(progressed.results),
                other => panic!("no answer: {other:?}"),
            }
        }
        results
    }
}

/// An outcome to send. Awaiting the value sends it, waits for the commit, and fails the test unless the status is OK.
pub struct Settling<'a> {
    worker: &'a mut Worker,
    outcome: Outcome,
}

impl Settling<'_> {
    /// Sends the outcome and returns its status.
    pub async fn status(self) -> SettleStatus {
        let Self { worker, outcome } = self;
        let is_it = |result: &SettleResult| (result.id, result.token) == (outcome.id, outcome.token);
        worker.settle(vec![outcome.clone()]).await;
        loop {
            if let Some(i) = worker.settled.iter().position(is_it) {
                return worker.settled.remove(i).status();
            }
            worker.keep_next().await;
        }
    }

    /// Sends the outcome without waiting for its result.
    pub async fn sent(self) {
        self.worker.settle(vec![self.outcome]).await;
    }
}

impl OutcomeOptions for Settling<'_> {
    fn with(mut self, change: impl FnOnce(&mut Kind)) -> Self {
        self.outcome = self.outcome.with(change);
        self
    }
}

impl<'a> IntoFuture for Settling<'a> {
    type Output = ();
    type IntoFuture = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { assert_eq!(self.status().await, SettleStatus::Ok) })
    }
}

fn request(message: work_request::Message) -> WorkRequest {
    WorkRequest { message: Some(message) }
}
