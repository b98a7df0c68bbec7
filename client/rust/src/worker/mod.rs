//! Runs jobs over one stream.
//!
//! The public modules:
//!
//! - [`builder`]: handlers and limits
//! - [`handler`]: kinds of handlers
//! - [`job`]: the argument of a handler
//! - [`results`]: the results of the jobs that a job depended on
//! - [`outcome`]: the result of a handler
//! - [`handle`]: handles of a running worker: stop it, resize it, read its report
//!
//! The internal modules, in the order in which a job passes through them:
//!
//! - [`link`]: opens a stream and subscribes
//! - [`session`]: the lifecycle of a worker: connect, serve, reconnect, stop
//! - [`upkeep`]: work with or without a stream: commands, mail, timers
//! - [`serve`]: one stream: receive and send
//! - [`flow`]: the messages in flight on that stream
//! - [`slots`]: limits concurrent handlers
//! - [`task`]: runs one handler
//! - [`mailbox`]: outcomes from the handlers to the session
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
