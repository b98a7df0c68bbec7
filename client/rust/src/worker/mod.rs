//! Work jobs over one stream.
//!
//! What a user of the crate sees:
//!
//! - [`builder`]: which handlers, how many at once
//! - [`handler`]: what may be a handler
//! - [`job`]: what a handler gets
//! - [`outcome`]: what a handler returns
//! - [`handle`]: a running worker: stop it, resize it, see what it did
//!
//! How it works, in the order of a job's way:
//!
//! - [`link`]: opens a stream and subscribes
//! - [`session`]: the life of a worker: connect, serve, come back, stop
//! - [`upkeep`]: what goes on with or without a stream: commands, mail, timers
//! - [`serve`]: one stream: what comes in, what goes out
//! - [`flow`]: what is on its way on that stream
//! - [`slots`]: how many handlers run at once
//! - [`task`]: runs one handler
//! - [`mailbox`]: outcomes on their way from the handlers to the session
//! - [`ledger`]: leases held, outcomes not confirmed
//! - [`batches`]: Settle messages on their way
//! - [`asks`]: requests for more time, progress reports

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

pub use self::{
    builder::{Worker, WorkerBuilder},
    handle::{WorkerHandle, WorkerReport, WorkerState},
    handler::TaskTypes,
    job::Job,
    outcome::{IntoOutcome, JobError, Outcome},
};
