//! What people and programs ask for besides enqueuing and working: jobs are looked at, waited for, cancelled, retried,
//! discarded and given other priorities; task types get settings; schedules are defined.

mod failed;
pub(crate) mod jobs;
pub(crate) mod priority;
mod schedules;
pub(crate) mod selection;
mod settings;
mod task_types;
pub(crate) mod wait;

use std::sync::Arc;

use crate::{maintain::Context, store::StoreError};
pub use failed::{RETRY_STATES, RetryAnswer, RetryQuery};
pub use jobs::{CANCEL_STATES, ListQuery};
pub(crate) use priority::ReprioritizeQuery;
pub use selection::{Selection, TypeSelection};
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
