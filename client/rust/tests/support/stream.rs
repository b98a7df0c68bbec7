//! The fake broker's side of a Work stream.

use std::time::Duration;

use howdah_client::proto::{
    self, LeasedJob, Outcome, SettleResult, SettleStatus, Subscribe, Welcome, WorkRequest, WorkResponse,
    work_request::Message as FromWorker, work_response::Message as ToWorker,
};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::{prost_duration, within};

/// One Work stream, from the broker's side.
pub struct FakeStream {
    pub(super) requests: Streaming<WorkRequest>,
    pub(super) responses: mpsc::Sender<Result<WorkResponse, Status>>,
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
        within(self.responses.send(Ok(WorkResponse { message }))).await.unwrap();
    }

    pub async fn push(&self, jobs: Vec<LeasedJob>) {
        self.send(ToWorker::Jobs(proto::Jobs { jobs })).await;
    }

    /// Waits for the worker's next message.
    pub async fn next(&mut self) -> FromWorker {
        let request = within(self.requests.message()).await.unwrap();
        request.expect("the worker has closed").message.unwrap()
    }

    /// Waits for the worker's next message, which must be a Settle, and returns its outcomes.
    pub async fn settle(&mut self) -> Vec<Outcome> {
        match self.next().await {
            FromWorker::Settle(settle) => settle.outcomes,
            other => panic!("not a Settle but {other:?}"),
        }
    }

    /// Waits for the next `count` outcomes, in any number of Settle messages.
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
        self.send(ToWorker::Settled(proto::Settled { results })).await;
    }

    pub async fn confirm(&self, outcomes: &[Outcome]) {
        self.answer(outcomes, SettleStatus::Ok, "").await;
    }

    /// Breaks the connection.
    pub async fn break_off(self) {
        let broken = Err(Status::unavailable("gone"));
        within(self.responses.send(broken)).await.unwrap();
    }

    pub async fn drain(&self, reason: proto::DrainReason, reconnect_after: Option<Duration>) {
        let drain = proto::Drain { reason: reason.into(), reconnect_after: reconnect_after.map(prost_duration) };
        self.send(ToWorker::Drain(drain)).await;
    }

    /// Answers the worker's drain request, and waits until the worker closes the stream.
    pub async fn finish(mut self) {
        assert_eq!(self.next().await, FromWorker::Drain(proto::DrainRequest {}));
        self.drain(proto::DrainReason::Requested, None).await;
        self.closed().await;
    }

    /// Waits until the worker closes its side of the stream.
    pub async fn closed(&mut self) {
        let end = within(self.requests.message()).await;
        assert!(matches!(end, Ok(None)), "not closed: {end:?}");
    }
}
