//! Conversion of strict types to protocol messages. Only this module builds responses.

mod access;
mod audit;
mod bulk;
mod error;
mod explanation;
mod job;
mod schedule;
mod search;
mod settings;
mod settle;
mod statistics;
mod storage;
mod store;
mod task_type;
mod time;
mod work;
mod worker;

pub(super) use access::token;
pub(super) use audit::audit_entry;
pub(super) use bulk::{bulk, bulk_preview};
pub(super) use error::request_error;
pub(super) use explanation::explanation;
use job::leased_job;
pub(super) use job::{enqueued, error_group, job};
pub(super) use schedule::schedule;
pub(super) use search::search_found;
pub(super) use settings::cluster_settings;
pub(super) use settle::{invalid_item, settle_result, settle_results};
pub(super) use statistics::stats;
pub(super) use storage::storage_health;
pub(super) use store::{move_progress, store};
pub(super) use task_type::{limit_key, settings, task_type};
pub(super) use time::{duration, time};
pub(super) use work::{leased_jobs, work_response};
pub(super) use worker::worker;
