//! Calls for workers, and the list of workers.

mod list;
pub(crate) mod messages; // messages of the `Work` stream
mod outcomes;
pub(crate) mod pull;
mod results;
pub(super) mod work;

pub(crate) use list::ListWorkers;
pub(crate) use outcomes::{ExtendJobs, ReportProgress, SettleJobs};
pub(crate) use pull::PullJobs;
pub(crate) use results::GetResults;
