//! Checks that turn messages into strict types. Every field of a request is checked here and nowhere else. An error names the
//! field with its index, the value, and the allowed range or the remedy. No input panics.

pub(crate) mod access;
pub(crate) mod audit;
mod body_hash;
pub(crate) mod bulk;
mod bulk_fields;
mod coordination;
mod enqueue;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod every;
mod extend;
mod items;
mod job_filter;
pub(crate) mod job_query;
pub(crate) mod limits;
mod local_names;
mod new_job;
mod numbers;
mod progress;
pub(crate) mod pull;
mod retry;
pub(crate) mod schedule;
pub(crate) mod search_query;
mod settings;
pub(crate) mod settle;
pub(crate) mod stats_query;
pub(crate) mod subscribe;
mod text;
mod time;
pub(crate) mod type_query;
mod work;
pub(crate) mod worker;

#[cfg(test)]
mod fuzz;

pub(super) use access::{create_token, list_tokens, revoke_tokens};
pub(super) use audit::{list_audit, reason};
pub(super) use bulk::{BulkQuery, bulk_spec, list_bulks, start_bulk};
pub(super) use enqueue::enqueue;
pub(super) use extend::extend;
pub(super) use items::Items;
pub(super) use job_filter::{cancel_jobs, discard_jobs, end_leases, retry_jobs};
pub(super) use job_query::{list_error_groups, list_jobs, reprioritize_jobs, wait_jobs};
pub(super) use limits::{list_limit_keys, pause_limit_key, resume_limit_key};
pub(super) use progress::progress;
pub(super) use pull::pull_jobs;
pub(crate) use schedule::job_of_template;
pub(super) use schedule::{list_schedules, run_schedule, schedule, schedule_name};
pub(super) use search_query::search_jobs;
pub(super) use settings::update_settings;
pub(super) use settle::settle;
pub(super) use stats_query::get_stats;
pub(super) use type_query::{list_task_types, update_task_type};
pub(super) use work::work_request;
pub(super) use worker::list_workers;

use howdah_proto::v1;

use crate::{
    error::Error,
    job::{ClusterSettings, TaskTypeName},
};

/// Checks jobs against the settings of a cluster, for programs without a broker.
pub fn check_jobs(jobs: Vec<v1::NewJob>, limits: &ClusterSettings) -> Result<(), Error> {
    enqueue(jobs, String::new(), limits).map(|_| ())
}

/// Checks a schedule against the settings of a cluster.
pub fn check_schedule(asked: v1::Schedule, limits: &ClusterSettings) -> Result<(), Error> {
    schedule(Some(asked), limits).map(|_| ())
}

/// Checks a task type's name.
fn task_type(field: &str, name: &str) -> Result<TaskTypeName, Error> {
    TaskTypeName::parse(name).map_err(|problem| Error::invalid(field, problem))
}

/// Checks the task type that gets a job when its attempts are used up. It must differ from the job's type.
fn fallback(field: &str, name: &str, of: &TaskTypeName) -> Result<Option<TaskTypeName>, Error> {
    if name == of.as_str() {
        return Err(Error::invalid(field, format!("is {name:?}, the task type itself; name another one")));
    }
    Some(name).filter(|name| !name.is_empty()).map(|name| task_type(field, name)).transpose()
}
