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

use howdah_proto::v1;

/// Returns a copy of the filter with these job ids.
fn of_ids(filter: Option<&v1::JobFilter>, ids: Vec<i64>) -> Option<v1::JobFilter> {
    Some(v1::JobFilter { ids, ..filter.cloned().unwrap_or_default() })
}

/// Returns the job ids and the task type of a filter.
fn parts(filter: Option<&v1::JobFilter>) -> (Vec<i64>, String) {
    filter.map(|filter| (filter.ids.clone(), filter.task_type.clone())).unwrap_or_default()
}
