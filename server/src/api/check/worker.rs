//! Checks of queries for workers.

use std::time::Duration;

use howdah_proto::v1;

use super::{numbers, task_type, time};
use crate::{
    api::page_token,
    error::Error,
    job::{TaskTypeName, WorkerPosition},
};

pub(crate) const PAGE: usize = 100;
pub(crate) const MAX_PAGE: usize = 1_000;
/// Default idle time after which a worker counts as stuck.
pub(crate) const STUCK_AFTER: Duration = Duration::from_mins(5);
/// Maximum value of `stuck_after`.
const LONGEST: Duration = Duration::from_hours(30 * 24);

/// A query for workers.
#[derive(Debug)]
pub(crate) struct WorkersQuery {
    pub(crate) task_type: Option<TaskTypeName>,
    pub(crate) after: WorkerPosition,
    pub(crate) page_size: usize,
    pub(crate) stuck_after: Duration,
}

/// Checks a query for workers.
pub(crate) fn list_workers(request: &v1::ListWorkersRequest) -> Result<WorkersQuery, Error> {
    let name = Some(&request.task_type).filter(|name| !name.is_empty());
    Ok(WorkersQuery {
        task_type: name.map(|name| task_type("task_type", name)).transpose()?,
        after: page_token::worker(&request.page_token)?.unwrap_or(WorkerPosition::FIRST),
        page_size: numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
        stuck_after: time::optional("stuck_after", request.stuck_after, &(time::MILLISECOND..=LONGEST))?
            .unwrap_or(STUCK_AFTER),
    })
}
