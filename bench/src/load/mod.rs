//! Producers and workers: real clients over gRPC, in this process. They share the machine with what they measure, so
//! they do little: messages are made and read in batches, and ids are kept in bits.

mod bits; // a set of ids
mod closed; // as fast as answers come
mod flood; // a principal that asks for more than it may have
mod ledger; // lost, duplicated, unexpected
mod open; // at fixed times, without waiting for answers
mod pages; // people who look
mod plan; // the plan of a trial
mod receiver; // of spans
mod rust_worker; // the Rust client's worker, for comparison
mod schedule; // the fixed times
mod single; // one job at a time, of each caller
mod slowest; // jobs that were picked up last
mod span; // what a trial measured
mod stamp; // when a job was due, in its payload
mod tally; // the state that producers and workers share
mod trial; // a trial, from the first worker to the final count
mod unary; // at fixed times, one job a call
mod worker; // one task per stream

pub(crate) use self::{
    flood::{ALLOWED, CONNECTIONS, Flood, Flooder},
    ledger::Faults,
    pages::{Pages, Seen},
    plan::{Demand, Plan, WorkerKind},
    receiver::Receiver,
    slowest::Slow,
    span::{Sample, Span},
    stamp::STAMP_BYTES,
    tally::Micros,
    trial::Trial,
};
