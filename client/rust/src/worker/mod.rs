//! Runs jobs over one stream.
//!
//! The public modules:
//!
//! - [`builder`]: handlers and limits
//! - [`handler`]: kinds of handlers
//! - [`job`]: the argument of a handler
//! - [`outcome`]: the result of a handler
//! - [`handle`]: a running worker: stop it, resize it, read its report
//!
//! The internal modules, in the order in which a job passes through them:
//!
//! - [`link`]: opens a stream and subscribes
//! - [`session`]: the life of a worker: connect, serve, reconnect, stop
//! - [`upkeep`]: work with or without a stream: commands, mail, timers
//! - [`serve`]: one stream: receive and send
//! - [`flow`]: the messages in flight on that stream
//! - [`slots`]: how many handlers run at once
//! - [`task`]: runs one handler
//! - [`mailbox`]: outcomes from the handlers to the session
//! - [`ledger`]: leases held, outcomes not confirmed
//! - [`batches`]: Settle messages in flight
//! - [`asks`]: extensions and progress reports in flight

mod asks;
mod batches;
mod builder;
mod flow;
mod handle;
mod handler;
mod job;
mod ledger;
mod link;
mod mailbox;
mod outcome;
mod serve;
mod session;
mod slots;
mod task;
mod upkeep;

pub(crate) use self::handler::Handler;
pub use self::{
    builder::{Worker, WorkerBuilder},
    handle::{WorkerHandle, WorkerReport, WorkerState},
    handler::TaskTypes,
    job::Job,
    outcome::{IntoOutcome, JobError, Outcome},
};
#[cfg(feature = "testing")]
pub(crate) use self::{
    job::Lease,
    ledger::Key,
    mailbox::{Mail, Mailbox},
};
