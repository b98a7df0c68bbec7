//! Faults that the suite must find: `HOWDAH_CONFORMANCE_FAULT` plants one. No part of an adapter.

use std::{env, sync::LazyLock};

use howdah_client::{
    Client, Job, Worker, WorkerHandle, WorkerState,
    proto::{Ack, Outcome, SettleJobsRequest, outcome},
};
use serde_json::Value;

static PLANTED: LazyLock<String> = LazyLock::new(|| env::var("HOWDAH_CONFORMANCE_FAULT").unwrap_or_default());

/// Whether this fault is planted.
pub(crate) fn has(name: &str) -> bool {
    *PLANTED == name
}

/// The log has the token.
pub(crate) fn leak(token: &Value) {
    if has("leaks_tokens") {
        eprintln!("connecting with the token {token}");
    }
}

/// Says the outcome by a call, besides what the worker says on its stream.
pub(crate) async fn settle(client: &Client, job: &Job) {
    if !has("settles_twice") && !has("settles_one_by_one") {
        return;
    }
    let ack = outcome::Outcome::Ack(Ack::default());
    let outcome = Outcome { id: job.id, token: job.token, outcome: Some(ack) };
    let mut workers = client.workers();
    let call = async move { workers.settle_jobs(SettleJobsRequest { outcomes: vec![outcome] }).await };
    if has("settles_twice") {
        let _ = call.await;
    } else {
        tokio::spawn(call);
    }
}

/// Faults of workers that have started.
pub(crate) fn worker(worker: &Worker, handle: &WorkerHandle) {
    if has("forgets_to_resume") {
        let (worker, mut handle) = (worker.clone(), handle.clone());
        tokio::spawn(async move {
            // A new session each time, and what was held is forgotten.
            while let WorkerState::Connected { .. } = handle.connected().await {
                while matches!(handle.state(), WorkerState::Connected { .. }) {
                    tokio::task::yield_now().await;
                }
                handle.abort();
                handle = worker.start();
            }
        });
    }
}

/// The worker wants no more jobs of this type once it has one.
pub(crate) fn concurrency(concurrency: usize) -> usize {
    if has("drops_its_window") { 1 } else { concurrency }
}
