//! Handlers that send the event `started`, and then wait for the runner's command `finish`, which contains their
//! outcome.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::future::BoxFuture;
use howdah_client::{
    Client, Job, JobError, Middleware, NewJob, Next, Outcome, Result, WorkerBuilder,
    proto::{CancelReason, ProgressReport},
};
use howdah_conformance::kit;
use howdah_proto::json as messages;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{Adapter, faults, millis, text};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A running handler: its job, and the channel that passes the runner's command `finish` to the handler.
#[derive(Clone)]
pub(crate) struct Run(Job, Arc<Mutex<Option<oneshot::Sender<Value>>>>);

fn bytes(of: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(of.as_str().unwrap_or_default()).unwrap_or_default()
}

impl Run {
    pub(crate) async fn handle_command(&self, verb: &str, command: &Value) -> Result<Value> {
        match verb {
            "finish" => drop(self.1.lock().take().map(|finish| finish.send(command.clone()))),
            "results" => {
                let (mut results, mut dependencies) = (self.0.results(), Vec::new());
                while let Some(result) = results.next().await? {
                    dependencies.push(messages::write("DependencyResult", &result).unwrap_or_default());
                }
                return Ok(json!({"dependencies": dependencies}));
            }
            "extend" => self.0.extend(millis(command, "duration_ms").unwrap_or_default()).await?,
            _ => {
                let checkpoint = command.get("checkpoint").map(|value| bytes(value).into());
                let (fraction, text) = (command["fraction"].as_f64(), command["text"].as_str().map(str::to_owned));
                self.0.report(ProgressReport { fraction, text, checkpoint, ..Default::default() }).await?;
            }
        }
        Ok(json!({}))
    }
}

/// Middleware that adds a header to enqueued jobs, and reports the start and end of handlers.
pub(crate) struct Around;

impl Middleware for Around {
    fn enqueue(&self, jobs: &mut [NewJob]) -> Result<()> {
        jobs.iter_mut().for_each(|job| *job = job.clone().header("conformance", "enqueue"));
        Ok(())
    }

    fn handle(&self, job: Job, next: Next) -> BoxFuture<'static, Outcome> {
        let id = job.id.to_string();
        Box::pin(async move {
            kit::write(&json!({"event": "around", "at": "before", "job": id}));
            let outcome = next.run(job).await;
            kit::write(&json!({"event": "around", "at": "after", "job": id}));
            outcome
        })
    }
}

/// Adds a handler for a task type to a worker.
pub(crate) fn add(
    adapter: Arc<Adapter>,
    client: &Client,
    builder: WorkerBuilder,
    worker: &str,
    of: &Value,
) -> WorkerBuilder {
    let name = text(of, "name");
    let (client, worker) = (client.clone(), worker.to_owned());
    let run = move |job, value| handle(adapter.clone(), client.clone(), worker.clone(), job, value);
    if of["payload"] == "json" {
        return builder.handle_json(name, move |value: Value, job| run(job, Some(value)));
    }
    builder.handle_with(name, concurrency(of), move |job| run(job, None))
}

/// Number of concurrent handlers of a task type.
pub(crate) fn concurrency(of: &Value) -> usize {
    faults::concurrency(of["concurrency"].as_u64().unwrap_or(1) as usize)
}

async fn handle(
    adapter: Arc<Adapter>,
    client: Client,
    worker: String,
    job: Job,
    value: Option<Value>,
) -> Result<Outcome, JobError> {
    let (run, (finish, mut finished)) = (NEXT.fetch_add(1, Ordering::Relaxed), oneshot::channel());
    adapter.runs.lock().insert(run, Run(job.clone(), Arc::new(Mutex::new(Some(finish)))));
    let (of_job, trace) = (leased(&job), kit::current_trace());
    kit::write(
        &json!({"event": "started", "worker": worker, "run": run, "job": of_job, "json": value, "trace": trace}),
    );
    let command = tokio::select! {
        command = &mut finished => command?,
        () = job.cancelled(), if !faults::has("ignores_cancel") => {
            let reason = match job.cancel_reason() {
                Some(CancelReason::Cancelled) => "cancelled",
                Some(CancelReason::Timeout) => "timeout",
                Some(_) => "lease_lost",
                None => "stop",
            };
            kit::write(&json!({"event": "cancelled", "worker": worker, "run": run, "reason": reason}));
            finished.await?
        }
    };
    faults::settle(&client, &job).await;
    outcome(&command)
}

fn outcome(command: &Value) -> Result<Outcome, JobError> {
    std::thread::sleep(millis(command, "block_ms").unwrap_or_default());
    let (error, after, result) = (text(command, "error"), millis(command, "after_ms"), bytes(&command["result"]));
    match (text(command, "outcome").as_str(), after) {
        ("ok", _) if !command["json"].is_null() => Outcome::json(&command["json"]),
        ("ok", _) => Ok(Outcome::ack(result)),
        ("next", _) => Ok(Outcome::advance(result, text(command, "next_stage"))),
        ("retry", None) => Err(JobError::retry(error)),
        ("retry", Some(after)) => Err(JobError::retry_after(error, after)),
        ("fatal", _) => Err(JobError::fatal(error)),
        ("snooze", _) => Ok(Outcome::snooze(after.unwrap_or(Duration::ZERO))),
        ("release", _) => Ok(Outcome::release()),
        _ => Err(std::io::Error::other(error).into()),
    }
}

fn leased(job: &Job) -> Value {
    let checkpoint = job.last_checkpoint().map(|bytes| BASE64_STANDARD.encode(bytes));
    let time = |time: Option<SystemTime>| time.map(|time| prost_types::Timestamp::from(time).to_string());
    json!({"id": job.id.to_string(), "token": job.token.to_string(), "task_type": job.task_type, "attempt": job.attempt,
           "max_attempts": job.max_attempts, "deadline": time(job.deadline), "create_time": time(Some(job.created)),
           "payload": BASE64_STANDARD.encode(&job.payload), "headers": job.headers, "tags": job.tags, "traceparent": job.traceparent,
           "tracestate": job.tracestate, "checkpoint": checkpoint})
}
