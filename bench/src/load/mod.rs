//! Producers and workers: real clients over gRPC, in this process. They share the machine with what they
//! measure, so they do little: messages are made and read in batches, and books are kept in bits.

mod bits; // a set of ids
mod closed; // as fast as answers come
mod ledger; // lost, duplicated, unexpected
mod open; // at fixed times, whatever the answers
mod plan; // what a trial is made of
mod rust_worker; // the Rust client's worker, for comparison
mod schedule; // the fixed times
mod single; // one job a call
mod stamp; // when a job was due, in its payload
mod tally; // what producers and workers share
mod trial; // from the first worker to closed books
mod worker; // one task a stream

pub(crate) use self::{
    ledger::Faults,
    plan::{Demand, Plan, WorkerKind},
    stamp::STAMP_BYTES,
    tally::Micros,
    trial::{Sample, Span, Trial},
};
