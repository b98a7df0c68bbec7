//! The calls of operators and producers, other than enqueuing and running jobs: get, search, wait for, cancel, retry, discard,
//! reprioritize and run again jobs; the same for many jobs in the background; settings of task types; schedules.

mod archived;
mod attempts; // jobs with the most attempts, and jobs that failed last
pub mod bulk;
pub(crate) mod explain;
mod failed;
pub mod jobs;
mod leases;
mod locked; // changes of many jobs, some of which are locked
pub mod priority;
mod readiness;
pub(crate) mod rerun;
mod schedules;
pub mod search;
pub mod selection;
pub mod stores;
mod task_types;
pub mod wait;
mod workers;

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::maintain::Context;
pub use failed::{RETRY_STATES, RetryAnswer, RetryQuery};
pub use jobs::{CANCEL_STATES, ListOrder, ListQuery};
pub use priority::REPRIORITIZE_STATES;
pub use rerun::{Reran, Rerun};
pub use schedules::{no_schedule, taken_schedule};
pub use selection::{Selection, TypeSelection};
pub use wait::{Ended, WaitingCaller};

/// Answers operators' calls.
#[derive(Clone)]
pub struct Operator {
    context: Arc<Context>,
    /// Permits that bound the number of concurrent searches that scan jobs one by one.
    searches: Arc<Semaphore>,
    last_check: Arc<readiness::LastCheck>,
    #[cfg(feature = "archive")]
    archive: crate::archive::Reader,
}

impl Operator {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            searches: Arc::new(Semaphore::new(search::AT_ONCE)),
            last_check: Arc::default(),
            #[cfg(feature = "archive")]
            archive: crate::archive::Reader::for_callers(context.store.clone()),
            context,
        }
    }
}
