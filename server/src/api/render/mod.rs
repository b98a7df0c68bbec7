//! Conversion of internal types to the protocol messages that several calls share.

mod job;
mod storage;
mod task_type;
mod time;

pub(super) use job::{dependencies, enqueued, job, leased_job, plain};
pub(super) use storage::storage_health;
pub(super) use task_type::{counts, retry_policy, settings, task_type};
pub(super) use time::{duration, micros, time};
