//! Checks that turn messages into strict types, for messages that several calls or streams share. Fields of a single call are
//! checked in its file in `verbs`. Every field is checked once. An error names the field with its index, the value, and the
//! allowed range or the remedy. No input panics.

mod coordination;
mod enqueue;
pub(crate) mod job_filter;
pub(crate) mod outcomes;
pub(super) mod new_job;
pub(super) mod numbers;
mod plain;
pub(super) mod rerun;
pub(super) mod retry;
pub(super) mod text;
pub(super) mod time;

pub(super) use enqueue::{body_hash, enqueue};

use howdah_core::{
    error::Error,
    job::{ClusterSettings, HistoryMode, TaskTypeName},
};
use howdah_proto::v1;

use super::{enums::WireEnum as _, verbs::schedules::definition};

/// Checks jobs against the cluster settings. For programs that use this crate without a broker.
pub fn check_jobs(jobs: Vec<v1::NewJob>, limits: &ClusterSettings) -> Result<(), Error> {
    enqueue(jobs, String::new(), limits).map(|_| ())
}

/// Checks a schedule against the cluster settings.
pub fn check_schedule(asked: v1::Schedule, limits: &ClusterSettings) -> Result<(), Error> {
    definition::check(Some(asked), limits).map(|_| ())
}

pub(super) fn task_type(field: &str, name: &str) -> Result<TaskTypeName, Error> {
    TaskTypeName::parse(name).map_err(|problem| Error::invalid(field, problem))
}

/// Checks a task type's name; `None` if it is empty.
pub(super) fn optional_task_type(field: &str, name: &str) -> Result<Option<TaskTypeName>, Error> {
    if name.is_empty() { Ok(None) } else { task_type(field, name).map(Some) }
}

/// Checks the task type that gets a job when its attempts are used up. It must differ from the job's type.
pub(super) fn fallback(field: &str, name: &str, of: &TaskTypeName) -> Result<Option<TaskTypeName>, Error> {
    if name == of.as_str() {
        return Err(Error::invalid(field, format!("is {name:?}, the task type itself; name another one")));
    }
    optional_task_type(field, name)
}

/// Checks a history mode. Returns `None` if it is unspecified.
pub(super) fn history(number: i32) -> Result<Option<HistoryMode>, Error> {
    HistoryMode::from_number("history", number)
}
