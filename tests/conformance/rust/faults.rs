//! Deliberate faults that the suite must find, to test the suite. `HOWDAH_CONFORMANCE_FAULT` selects one.

use std::{env, sync::LazyLock};

use howdah_client::{
    Client, Job, Worker, WorkerHandle, WorkerState,
    proto::{Ack, Outcome, SettleJobsRequest, outcome},
};
use serde_json::Value;

static SELECTED: LazyLock<String> = LazyLock::new(|| env::var("HOWDAH_CONFORMANCE_FAULT").unwrap_or_default());

/// Whether the environment variable selects the fault `name`.
pub(crate) fn has(name: &str) -> bool {
    *SELECTED == name
}

/// Fault `leaks_tokens`: writes the token to the log.
pub(crate) fn leak(token: &Value) {
    if has("leaks_tokens") {
        eprintln!("connecting with the token {token}");
    }
}

/// Faults `settles_twice` and `settles_one_by_one`: settles the job by a unary call in addition to the worker's stream.
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

/// Fault `forgets_to_resume`: when the worker's connection breaks, a new worker replaces it instead of resuming its session.
pub(crate) fn worker(worker: &Worker, handle: &WorkerHandle) {
    if has("forgets_to_resume") {
        let (worker, mut handle) = (worker.clone(), handle.clone());
        tokio::spawn(async move {
            // The new worker gets a new session, and does not report the leases of the previous worker.
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

/// Fault `drops_its_window`: limits the window of each task type to one job, whatever the configured concurrency.
pub(crate) fn concurrency(concurrency: usize) -> usize {
    if has("drops_its_window") { 1 } else { concurrency }
}
