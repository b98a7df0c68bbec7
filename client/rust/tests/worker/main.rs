//! Tests of a worker's messages to its broker, and of its reactions to responses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod handlers;
mod resume;
mod stop;
#[path = "../support/mod.rs"]
mod support;
mod windows;

use std::time::Duration;

use howdah_client::{
    Client, Job, Outcome, WorkerHandle,
    proto::{self, outcome::Outcome as Wire},
};
use support::within;
use tokio::sync::{mpsc, oneshot};

/// A worker of type `t` whose handlers signal their start and run until the test ends them.
pub(crate) struct Held {
    pub(crate) handle: WorkerHandle,
    pub(crate) begun: mpsc::UnboundedReceiver<(Job, oneshot::Sender<Outcome>)>,
}

impl Held {
    /// Starts the worker with a stop timeout of a year, so that handlers cannot exceed it.
    pub(crate) fn start(client: &Client) -> Self {
        Self::start_with(client, Duration::from_hours(365 * 24))
    }

    pub(crate) fn start_with(client: &Client, stop_timeout: Duration) -> Self {
        let (sender, begun) = mpsc::unbounded_channel();
        let worker = client
            .worker()
            .handle("t", move |job: Job| {
                let sender = sender.clone();
                async move {
                    let (end, ended) = oneshot::channel();
                    sender.send((job, end)).unwrap();
                    ended.await.unwrap_or(Outcome::fail("not told how to end"))
                }
            })
            .concurrency(10)
            .stop_timeout(stop_timeout)
            .build();
        Self { handle: worker.start(), begun }
    }

    pub(crate) async fn begun(&mut self) -> (Job, oneshot::Sender<Outcome>) {
        within(self.begun.recv()).await.unwrap()
    }
}

pub(crate) fn ids(outcomes: &[proto::Outcome]) -> Vec<i64> {
    let mut ids: Vec<i64> = outcomes.iter().map(|outcome| outcome.id).collect();
    ids.sort_unstable();
    ids
}

pub(crate) fn held(subscribe: &proto::Subscribe) -> Vec<i64> {
    let mut ids: Vec<i64> = subscribe.held.iter().map(|lease| lease.id).collect();
    ids.sort_unstable();
    ids
}

pub(crate) fn nack(outcome: &proto::Outcome) -> &proto::Nack {
    match &outcome.outcome {
        Some(Wire::Nack(nack)) => nack,
        other => panic!("not a nack but {other:?}"),
    }
}
