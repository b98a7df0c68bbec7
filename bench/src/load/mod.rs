//! Producers and workers: gRPC clients in this process. They share the machine with the brokers, so they use little processor
//! time: they create and read messages in batches, and keep ids as bits.

mod ledger; // finds lost, duplicated and unexpected jobs
mod plan; // the plan of a trial
mod produce; // producers: closed loop, callers, open loop
mod stamp; // the due time in each payload
mod tally; // the shared state of producers and workers
mod trial; // a trial, from the first worker to the final count
mod worker; // workers, one task per stream

pub(crate) use self::{
    ledger::Faults,
    plan::{Demand, Plan, WorkerKind},
    stamp::STAMP_BYTES,
    tally::{Micros, Slow},
    trial::{Sample, Span, Trial},
};
