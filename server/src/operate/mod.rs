//! The calls of operators and producers, other than enqueuing and running jobs: get, search, wait for, cancel, retry, discard
//! and reprioritize jobs; the same for many jobs in the background; settings of task types; schedules.

mod archived;
mod attempts;
pub(crate) mod bulk;
pub(crate) mod explain;
mod failed;
pub(crate) mod jobs;
mod leases;
mod locked; // what other transactions hold does not hold up the rest
pub(crate) mod priority;
mod schedules;
pub(crate) mod search;
pub(crate) mod selection;
mod settings;
pub(crate) mod stores;
mod task_types;
mod tokens;
pub(crate) mod wait;
mod workers;

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{maintain::Context, store::StoreError};
pub use failed::{RETRY_STATES, RetryAnswer, RetryQuery};
pub use jobs::{CANCEL_STATES, ListQuery};
pub(crate) use priority::ReprioritizeQuery;
pub(crate) use schedules::{no_schedule, taken_schedule};
pub use selection::{Selection, TypeSelection};
pub(crate) use tokens::RevokeQuery;
pub(crate) use wait::{Ended, WaitingCaller};

/// Answers operators' calls.
#[derive(Clone)]
pub struct Operator {
    context: Arc<Context>,
    /// Turns of searches that look at jobs one by one.
    searches: Arc<Semaphore>,
    #[cfg(feature = "archive")]
    archive: crate::archive::Reader,
}

impl Operator {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            searches: Arc::new(Semaphore::new(search::AT_ONCE)),
            #[cfg(feature = "archive")]
            archive: crate::archive::Reader::for_callers(context.store.clone()),
            context,
        }
    }

    /// Whether jobs can be stored, claimed and settled; otherwise a sentence that says why not. It names no host and no
    /// user: those are in the log.
    pub async fn readiness(&self) -> Result<(), &'static str> {
        let found = match self.context.store.readiness(self.context.dispatch.broker_id()).await {
            Ok(found) => found,
            Err(error) => {
                self.context.store.failed("checking readiness", &error);
                return Err(match error {
                    StoreError::Refused(_) => {
                        "the schema in the database is missing or incomplete: restart a broker, or run howdah migrate"
                    }
                    _ => "Postgres cannot be reached",
                });
            }
        };
        if !found.has_all_partitions {
            self.context.partitions_now.notify_one();
        }
        match found {
            found if !found.has_partitions => {
                Err("a partition of history or payloads is missing, so jobs cannot be settled; it is being made")
            }
            found if !found.has_lease => {
                Err("the lease of this broker has expired, so it claims no jobs; it is being renewed")
            }
            _ => Ok(()),
        }
    }
}
