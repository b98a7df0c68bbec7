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

pub(crate) use cancel::CancelJobs;
pub(crate) use discard::DiscardJobs;
pub(crate) use end_leases::EndLeases;
pub(crate) use enqueue::{EnqueueJobs, enqueue};
pub(crate) use error_groups::ListErrorGroups;
pub(crate) use explain::ExplainJob;
pub(crate) use get::GetJob;
pub(crate) use list::ListJobs;
pub(crate) use reprioritize::ReprioritizeJobs;
pub(crate) use rerun::RerunJobs;
pub(crate) use retry::RetryJobs;
pub(crate) use search::SearchJobs;
