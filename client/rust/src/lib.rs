//! The Rust client of Howdah, a gRPC streaming job broker on Postgres.
//!
//! ```no_run
//! use howdah_client::{Client, Job, JobError, NewJob};
//!
//! # async fn example() -> howdah_client::Result<()> {
//! let client = Client::connect("http://127.0.0.1:7432").await?;
//! client.enqueue(NewJob::new("email.send").payload("ann@example.com")).await?;
//! let worker = client
//!     .worker()
//!     .handle("email.send", |job: Job| async move {
//!         println!("to {}", std::str::from_utf8(&job.payload)?);
//!         Ok::<_, JobError>(())
//!     })
//!     .concurrency(16)
//!     .build();
//! worker.run_until(async { drop(tokio::signal::ctrl_c().await) }).await?;
//! # Ok(()) }
//! ```
//!
//! When an enqueue returns, the job is committed exactly once. The broker pushes jobs to the worker, which resends the
//! outcome of a handler until the broker confirms it.
//!
//! A job passes through these modules: [`proto`] has the protocol messages and the generated clients; `client` holds the
//! connections, and `call` makes single calls with deadlines and retries; `enqueue` and `producer` send jobs; `worker` runs
//! them.

#![warn(missing_docs)]

mod call;
mod client;
mod cluster;
mod connection;
mod endpoint;
mod enqueue;
mod error;
mod jobs;
mod middleware;
mod new_job;
mod options;
mod producer;
mod schedule;
mod setters;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
#[cfg(feature = "tls")]
mod tls;
mod wait;
mod worker;

pub use howdah_proto::v1::{self as proto, EnqueueOutcome};
pub use tokio_util::sync::CancellationToken;

pub use self::{
    client::{Client, ClientBuilder},
    connection::{Connection, Credential},
    enqueue::{Enqueued, new_request_key},
    error::{Error, Result, StatusError},
    middleware::{Middleware, Next},
    new_job::{NewJob, RetryPolicy},
    producer::{Producer, ProducerOptions, Receipt},
    schedule::{NewSchedule, Plan},
    wait::EndedJobs,
    worker::{
        IntoOutcome, Job, JobError, Outcome, Results, TaskTypes, Worker, WorkerBuilder, WorkerHandle, WorkerReport,
        WorkerState, shutdown_signal,
    },
};

#[cfg(feature = "opentelemetry")]
pub use self::telemetry::Telemetry;
#[cfg(feature = "tls")]
pub use self::tls::Tls;

/// Makes `cargo test --doc` compile the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    /// Returns the lines of the first Rust code block in a text, without the lines that rustdoc hides.
    fn rust<'a>(text: &'a str, prefix: &'a str, fence: &str) -> Vec<&'a str> {
        let lines = text.lines().map(|line| line.strip_prefix(prefix).unwrap_or(line).trim_start_matches(' '));
        let block = lines.skip_while(|line| *line != fence).skip(1).take_while(|line| *line != "```");
        block.filter(|line| !line.starts_with("# ") && !line.starts_with("use ") && !line.is_empty()).collect()
    }

    #[test]
    fn the_example_of_the_readme_is_the_one_that_is_compiled_here() {
        let readme = rust(include_str!("../../../README.md"), "", "```rust");
        assert!(!readme.is_empty());
        assert_eq!(readme, rust(include_str!("lib.rs"), "//!", "```no_run"));
    }
}
