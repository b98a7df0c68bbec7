//! The Rust client of Howdah, a gRPC streaming job broker on Postgres.
//!
//! ```no_run
//! use howdah_client::{Client, Job, JobError, NewJob};
//!
//! # async fn example() -> howdah_client::Result<()> {
//! let client = Client::connect("http://127.0.0.1:7432").await?;
//!
//! // Enqueue: done when it is committed, and never twice.
//! client.enqueue(NewJob::new("email.send").payload("ann@example.com")).await?;
//!
//! // Work: jobs are pushed; what the handler returns is sent back until it is confirmed.
//! let worker = client
//!     .worker()
//!     .handle("email.send", |job: Job| async move {
//!         let to = std::str::from_utf8(&job.payload)?;
//!         println!("sending to {to}, attempt {}", job.attempt);
//!         Ok::<_, JobError>(())
//!     })
//!     .concurrency(16)
//!     .build();
//! let report = worker.run_until(async { drop(tokio::signal::ctrl_c().await) }).await?;
//! println!("{} jobs done", report.acked);
//! # Ok(()) }
//! ```
//!
//! The modules, in the order of a job's way:
//!
//! - [`proto`]: the protocol, for the raw clients and the messages of operators
//! - `client`, `endpoint`: connections
//! - `call`, `backoff`: deadlines and retries of single calls
//! - `new_job`, `enqueue`: one call
//! - `producer`: many jobs over one stream, in batches that form by themselves
//! - `worker`: handlers over one stream
//! - `query`: look at jobs, task types and the storage, cancel jobs
//! - `error`, `time`: what all of them use

mod backoff;
mod call;
mod client;
mod endpoint;
mod enqueue;
mod error;
mod new_job;
mod producer;
mod query;
mod time;
mod worker;

pub use howdah_proto::v1 as proto;
pub use tokio_util::sync::CancellationToken;

pub use self::{
    client::{Client, ClientBuilder},
    enqueue::Enqueued,
    error::{Error, Result, StatusError},
    new_job::{NewJob, RetryPolicy},
    producer::{Producer, ProducerOptions, Receipt},
    worker::{
        IntoOutcome, Job, JobError, Outcome, TaskTypes, Worker, WorkerBuilder, WorkerHandle, WorkerReport, WorkerState,
    },
};
