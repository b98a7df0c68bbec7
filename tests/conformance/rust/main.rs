//! The adapter of the Rust client; see `tests/conformance/ADAPTER.md`.

mod faults;
mod handlers;

use std::{collections::HashMap, sync::Arc, time::Duration};

use howdah_client::{
    Client, ClientBuilder, Enqueued, Error, NewJob, ProducerOptions, Result, Tls, WorkerHandle, WorkerReport, proto,
    shutdown_signal,
};
use howdah_conformance::{dynamic, kit};
use howdah_proto::json as messages;
use opentelemetry::trace::FutureExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::handlers::{Around, Run};

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter("howdah_client=debug").init();
    let (adapter, spans) = (Arc::new(Adapter::default()), kit::Spans::keep());
    kit::serve(move |command| handle_command(adapter.clone(), spans.clone(), command)).await;
    std::process::exit(0);
}

#[derive(Default)]
struct Adapter {
    clients: Mutex<HashMap<String, Client>>,
    workers: Mutex<HashMap<String, WorkerHandle>>,
    runs: Mutex<HashMap<u64, Run>>,
}

fn text(of: &Value, field: &str) -> String {
    of[field].as_str().unwrap_or_default().to_owned()
}

fn millis(of: &Value, field: &str) -> Option<Duration> {
    of[field].as_u64().map(Duration::from_millis)
}

fn list<'v>(of: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    of[field].as_array().into_iter().flatten()
}

/// Calls a builder's setter if the optional setting has a value.
fn with<B, V>(builder: B, value: Option<V>, set: impl FnOnce(B, V) -> Result<B>) -> Result<B> {
    match value {
        Some(value) => set(builder, value),
        None => Ok(builder),
    }
}

fn problem(error: &Error) -> Value {
    let lost = matches!(error, Error::LeaseLost { .. }).then_some("LEASE_LOST");
    json!({"code": dynamic::code(error.code()), "reason": error.reason().or(lost), "field": error.field(),
           "message": error.to_string(), "retry_after_ms": error.retry_after().map(|after| after.as_millis() as u64)})
}

fn enqueued(job: &Enqueued) -> Value {
    let outcome = job.outcome.as_str_name().trim_start_matches("ENQUEUE_OUTCOME_").to_lowercase();
    json!({"id": job.id.to_string(), "is_new": job.is_new, "outcome": outcome})
}

async fn handle_command(adapter: Arc<Adapter>, spans: kit::Spans, command: Value) -> Result<Value, Value> {
    let verb = text(&command, "do");
    let client = || adapter.clients.lock().get(&text(&command, "client")).cloned().ok_or(Error::refused("client", "?"));
    let run = || adapter.runs.lock().get(&command["run"].as_u64().unwrap_or_default()).cloned();
    let done = match verb.as_str() {
        "hello" => Ok(json!({"protocol": 1, "client": "howdah-client (Rust)", "pid": std::process::id()})),
        "connect" => adapter.connect(&command).await,
        "close" => {
            adapter.clients.lock().remove(&text(&command, "client"));
            Ok(json!({}))
        }
        "spans" => Ok(spans.take()),
        "finish" | "progress" | "extend" | "results" => match run() {
            Some(run) => run.handle_command(&verb, &command).await,
            None => return Err(json!({"code": "NOT_FOUND", "message": "no handler with this run number is running"})),
        },
        "stop" => {
            let worker = adapter.workers.lock().remove(&text(&command, "worker"));
            worker.ok_or_else(|| json!({"code": "NOT_FOUND"}))?.stop().await.map(|_| json!({}))
        }
        _ => match (verb.as_str(), client().map_err(|error| problem(&error))?) {
            ("enqueue", client) => enqueue(&client, &command).await,
            ("produce", client) => produce(&client, &command).await,
            ("wait", client) => wait(&client, &command).await,
            ("work", client) => adapter.work(&client, &command),
            ("call", client) => dynamic::call(client.connection(), &text(&command, "method"), &command["request"])
                .await
                .map_or_else(|status| Err(status.into()), |responses| Ok(json!({"responses": responses}))),
            _ => return Err(json!({"code": "UNIMPLEMENTED", "message": verb})),
        },
    };
    done.map_err(|error| problem(&error))
}

impl Adapter {
    async fn connect(&self, command: &Value) -> Result<Value> {
        let mut builder = match &command["addresses"] {
            Value::Array(all) => Client::builder().endpoints(all.iter().filter_map(Value::as_str)),
            _ => Client::builder().environment()?,
        };
        faults::leak(&command["token"]);
        builder = with(builder, command["token"].as_str(), ClientBuilder::token)?;
        builder = with(builder, command["token_file"].as_str(), ClientBuilder::token_file)?;
        builder = with(builder, millis(command, "request_timeout_ms"), |builder, of| Ok(builder.request_timeout(of)))?;
        if command["middleware"] == true {
            builder = builder.middleware(Around);
        }
        if let Some(files) = command["tls"].as_object() {
            let tls = with(Tls::new(), files.get("ca").and_then(Value::as_str), Tls::ca_file)?;
            let pair = files.get("cert").and_then(Value::as_str).zip(files.get("key").and_then(Value::as_str));
            builder = builder.tls(with(tls, pair, |tls, (cert, key)| tls.client_files(cert, key))?);
        }
        let client = builder.connect().await?;
        self.clients.lock().insert(text(command, "client"), client);
        Ok(json!({}))
    }

    fn work(self: &Arc<Self>, client: &Client, command: &Value) -> Result<Value> {
        let total = list(command, "types").map(handlers::concurrency).sum();
        let (mut builder, name) = (client.worker().concurrency(total), text(command, "worker"));
        for of in list(command, "types") {
            builder = handlers::add(self.clone(), client, builder, &name, of);
        }
        builder = with(builder, command["window_bytes"].as_u64(), |builder, of| Ok(builder.window_bytes(of)))?;
        let largest = command["max_message_bytes"].as_u64();
        builder = with(builder, largest, |builder, of| Ok(builder.max_message_bytes(of as usize)))?;
        builder = with(builder, millis(command, "stop_timeout_ms"), |builder, of| Ok(builder.stop_timeout(of)))?;
        builder = with(builder, millis(command, "liveness_ms"), |builder, of| Ok(builder.liveness(of)))?;
        for (label, value) in command["labels"].as_object().into_iter().flatten() {
            builder = builder.label(label, value.as_str().unwrap_or_default());
        }
        let worker = builder.build();
        let report_end = move |ended: Result<WorkerReport>| {
            let error = ended.err().map(|error| problem(&error));
            kit::write(&json!({"event": "ended", "worker": name, "error": error}));
        };
        if command["on_sigterm"] == true {
            tokio::spawn(async move {
                report_end(worker.run_until(shutdown_signal()).await);
                std::process::exit(0);
            });
            return Ok(json!({}));
        }
        let handle = worker.start();
        faults::worker(&worker, &handle);
        self.workers.lock().insert(text(command, "worker"), handle.clone());
        tokio::spawn(async move { report_end(handle.joined().await) });
        Ok(json!({}))
    }
}

fn jobs(command: &Value) -> Result<Vec<NewJob>> {
    let read = |job: &Value| messages::read::<proto::NewJob>("NewJob", job.to_string().as_bytes()).map(NewJob::from);
    list(command, "jobs").map(read).collect::<Result<_, _>>().map_err(|error| Error::refused("jobs", error.to_string()))
}

async fn enqueue(client: &Client, command: &Value) -> Result<Value> {
    let mut jobs = jobs(command)?;
    let enqueue = async {
        match (command["request_key"].as_str(), jobs.len()) {
            (Some(key), _) => client.enqueue_all_with_key(jobs, key).await,
            (None, 1) => client.enqueue(jobs.remove(0)).await.map(|job| vec![job]),
            (None, _) => client.enqueue_all(jobs).await,
        }
    };
    let done = enqueue.with_context(kit::remote_trace(&text(command, "traceparent"))).await?;
    Ok(json!({"jobs": done.iter().map(enqueued).collect::<Vec<_>>()}))
}

async fn produce(client: &Client, command: &Value) -> Result<Value> {
    let mut options = ProducerOptions::default();
    let or = |field: &str, default| command[field].as_u64().map_or(default, |number| number as usize);
    options.max_in_flight = or("max_in_flight", options.max_in_flight);
    options.max_batch_jobs = or("max_batch_jobs", options.max_batch_jobs);
    let (producer, mut receipts, mut results) = (client.producer_with(options), Vec::new(), Vec::new());
    for job in jobs(command)? {
        receipts.push(producer.submit(job).await?);
    }
    for receipt in receipts {
        results.push(receipt.await.map_or_else(|error| json!({"error": problem(&error)}), |job| enqueued(&job)));
    }
    Ok(json!({"results": results}))
}

async fn wait(client: &Client, command: &Value) -> Result<Value> {
    let ids: Vec<i64> = list(command, "ids").filter_map(|id| id.as_str()?.parse().ok()).collect();
    let mut ended = client.wait_jobs(ids, millis(command, "timeout_ms").unwrap_or_default()).await?;
    let mut jobs = Vec::new();
    while let Some(job) = ended.next().await? {
        jobs.push(messages::write("Job", &job).unwrap_or_default());
    }
    Ok(json!({"jobs": jobs}))
}
