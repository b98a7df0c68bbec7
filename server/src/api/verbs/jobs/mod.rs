//! Calls for producers and operators about jobs.

mod cancel;
mod discard;
mod end_leases;
mod enqueue;
mod error_groups;
mod explain;
mod get;
pub(crate) mod list;
mod reprioritize;
pub(crate) mod rerun;
mod retry;
pub(crate) mod search;
pub(super) mod stream_enqueue;
pub(crate) mod wait;

pub(crate) use enqueue::enqueue;
