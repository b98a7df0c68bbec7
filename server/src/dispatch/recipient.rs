//! The receivers of jobs.

use std::sync::Arc;

use super::{Dispatch, SessionKey};
use crate::job::LeasedJob;

/// A worker, as dispatch knows it: it has windows and takes jobs.
pub(crate) trait Recipient: Send + Sync {
    /// Its number within this broker.
    fn key(&self) -> SessionKey;

    /// The weight of the largest job that fits into a message to this worker.
    fn max_job_bytes(&self) -> u64;

    /// Takes jobs to send, and returns them if it can take none any more.
    fn offer(self: Arc<Self>, jobs: Vec<LeasedJob>, dispatch: &Dispatch) -> Vec<LeasedJob>;
}
