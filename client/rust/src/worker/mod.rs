//! Runs jobs over one stream.
//!
//! The modules, in the order in which a job passes through them:
//!
//! - [`link`]: opens a stream and subscribes
//! - [`session`]: the lifecycle of a worker: connect, serve, reconnect, stop
//! - [`upkeep`]: work with or without a stream: commands, mail, timers
//! - [`serve`]: one stream: receive and send
//! - [`flow`]: the messages in flight on that stream
//! - [`slots`]: limits concurrent handlers
//! - [`task`]: runs one handler
//! - [`ledger`]: held leases and unconfirmed outcomes
//! - [`batches`]: Settle messages in flight
//! - [`requests`]: extensions and progress reports in flight

mod batches;
mod builder;
mod flow;
mod handle;
mod handler;
mod job;
mod ledger;
mod link;
mod outcome;
mod pulse;
mod requests;
mod results;
mod serve;
mod session;
mod slots;
mod task;
mod unary;
mod upkeep;

pub(crate) use self::handler::Handler;
pub use self::{
    builder::{Worker, WorkerBuilder},
    handle::{WorkerHandle, WorkerReport, WorkerState},
    handler::TaskTypes,
    job::Job,
    outcome::{IntoOutcome, JobError, Outcome},
    results::Results,
};
#[cfg(feature = "testing")]
pub(crate) use self::{job::Lease, ledger::Key, session::Mail};
