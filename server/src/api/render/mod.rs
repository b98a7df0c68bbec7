//! Conversion of internal types to the protocol messages that several calls share.

mod bulk;
mod error;
mod job;
mod schedule;
mod settings;
mod settle;
mod storage;
mod task_type;
mod time;
mod work;

pub(super) use bulk::bulk;
pub(super) use error::request_error;
use job::leased_job;
pub(super) use job::{dependencies, enqueued, job};
pub(super) use schedule::schedule;
pub(super) use settings::cluster_settings;
pub(super) use settle::{invalid_item, settle_result, settle_results};
pub(super) use storage::storage_health;
pub(super) use task_type::{counts, history_mode, retry_policy, settings, task_type};
pub(super) use time::{duration, time};
pub(super) use work::{leased_jobs, work_response};
