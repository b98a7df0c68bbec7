//! Runs jobs over one stream.
//!
//! The modules, in the order in which a job passes through them:
//!
//! - [`link`]: opens a stream and subscribes
//! - [`session`]: the lifecycle of a worker: connect, serve, reconnect, stop
//! - [`background`]: work with or without a stream: commands, mail, timers, unary calls
//! - [`serve`]: one stream: receive and send
//! - [`flow`]: the messages in flight on that stream
//! - [`slots`]: limits concurrent handlers
//! - [`handler`]: runs one handler
//! - [`ledger`]: held leases and unconfirmed outcomes
//! - [`requests`]: extensions and progress reports in flight

mod builder;
mod flow;
mod handle;
mod handler;
mod job;
mod ledger;
mod link;
mod outcome;
mod requests;
mod serve;
mod session;
mod slots;
mod background;

pub(crate) use self::handler::Handler;
pub use self::{
    builder::{Worker, WorkerBuilder},
    handle::{WorkerHandle, WorkerReport, WorkerState, shutdown_signal},
    handler::TaskTypes,
    job::{Job, Results},
    outcome::{IntoOutcome, JobError, Outcome},
};
#[cfg(feature = "testing")]
pub(crate) use self::{job::Lease, ledger::Key, session::Mail};
