//! The calls of operators and producers, other than enqueuing and running jobs: get, wait for, cancel, retry, discard
//! and reprioritize jobs; settings of task types; schedules.

mod failed;
pub(crate) mod jobs;
mod locked; // what other transactions hold does not hold up the rest
pub(crate) mod priority;
mod schedules;
pub(crate) mod selection;
mod settings;
mod task_types;
mod tokens;
pub(crate) mod wait;

use std::sync::Arc;

use crate::{maintain::Context, store::StoreError};
pub use failed::{RETRY_STATES, RetryAnswer, RetryQuery};
pub use jobs::{CANCEL_STATES, ListQuery};
pub(crate) use priority::ReprioritizeQuery;
pub(crate) use schedules::no_schedule;
pub use selection::{Selection, TypeSelection};
pub(crate) use tokens::RevokeQuery;
pub(crate) use wait::Ended;

/// Answers operators' calls.
#[derive(Clone)]
pub struct Operator {
    context: Arc<Context>,
}

impl Operator {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Whether Postgres answers.
    pub async fn ping_database(&self) -> Result<(), StoreError> {
        self.context.store.ping().await
    }
}
