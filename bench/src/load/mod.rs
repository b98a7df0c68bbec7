//! Producers and workers: gRPC clients in this process. They share the machine with the brokers, so they use little processor
//! time: they create and read messages in batches, and keep ids as bits.

mod bits; // a bit set of ids
mod closed; // closed loop: as fast as jobs are settled
mod ledger; // finds lost, duplicated and unexpected jobs
mod plan; // the plan of a trial
mod rust_worker; // the Rust client's worker, as in a user's program
mod schedule; // the due times of an open loop
mod single; // callers that enqueue one job at a time
mod slowest; // the jobs with the highest latency
mod span; // the result of a measurement
mod stamp; // the due time in each payload
mod tally; // the shared state of producers and workers
mod trial; // a trial, from the first worker to the final count
mod unary; // open loop with one job per call
mod worker; // one task per stream

pub(crate) use self::{
    ledger::Faults,
    plan::{Demand, Plan, WorkerKind},
    slowest::Slow,
    span::{Sample, Span},
    stamp::STAMP_BYTES,
    tally::Micros,
    trial::Trial,
};
