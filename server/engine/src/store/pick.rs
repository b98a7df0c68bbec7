//! Ids of the jobs that a selection includes, page by page.

use std::time::SystemTime;

use howdah_core::job::{JobConditions, JobState, PagePosition, TypeId};
use postgres_types::Json;
use tokio_postgres::Row;

use super::{Statement, Store, StoreError, connection::Params};

/// Query for the ids of the next jobs of a selection.
#[derive(Clone, Copy, Debug)]
pub struct Pick<'a> {
    /// Task type of the jobs.
    pub type_id: TypeId,
    /// State of the jobs, and the position to start from.
    pub from: PagePosition,
    /// Maximum number of jobs.
    pub at_most: i32,
    /// Conditions on the jobs.
    pub conditions: &'a JobConditions,
    /// Jobs that the worker of the conditions holds. `None` if the conditions name no worker.
    pub held: Option<&'a [i64]>,
    /// Error group, for scheduled and dead jobs.
    pub error_group: Option<&'a str>,
    /// Whether to pick only scheduled jobs that have failed before.
    pub failed: bool,
    /// Only scheduled and dead jobs that failed before this time and have not been retried since.
    pub failed_before: Option<SystemTime>,
    /// Only jobs with another priority than this.
    pub other_priority: Option<i16>,
    /// Highest job id.
    pub last_id: i64,
}

/// A page of ids of jobs to change.
#[derive(Debug)]
pub struct Picked {
    /// Job ids. May be empty even if more jobs follow.
    pub ids: Vec<i64>,
    /// Position to continue from. `None` if no more jobs in the scanned state follow.
    pub next: Option<PagePosition>,
}

impl Picked {
    /// Reads the picked job ids, and the position to continue from, which is the position of the last row. On a full
    /// page, the last row is a picked job, otherwise a job that was scanned and not picked.
    pub(super) fn from_rows(rows: &[Row], state: JobState, at_most: i32) -> Self {
        let is_picked = |row: &Row| row.get::<_, bool>("picked");
        let ids: Vec<i64> = rows.iter().filter(|row| is_picked(row)).map(|row| row.get("id")).collect();
        let goes_on = |row: &&Row| !is_picked(row) || ids.len() >= at_most as usize;
        let next =
            rows.last().filter(goes_on).map(|row| PagePosition { state, rank: row.get("rank"), id: row.get("id") });
        Self { ids, next }
    }
}

impl Store {
    /// Returns ids of jobs of one task type in one state, from a position on. Jobs with a tag come in the order of their
    /// ids, other ready jobs in the order of their ranks.
    pub async fn pick(&self, pick: &Pick<'_>) -> Result<Picked, StoreError> {
        let Pick { type_id, from, at_most, conditions, error_group, .. } = pick;
        let statement = match (from.state, conditions.tag.is_some()) {
            (JobState::Ready, false) => Statement::PickReady,
            (JobState::Ready, true) => Statement::PickTaggedReady,
            (JobState::Leased, false) => Statement::PickLeased,
            (JobState::Leased, true) => Statement::PickTaggedLeased,
            (JobState::Scheduled, false) => Statement::PickScheduled,
            (JobState::Scheduled, true) => Statement::PickTaggedScheduled,
            (JobState::Waiting, false) => Statement::PickWaiting,
            (JobState::Waiting, true) => Statement::PickTaggedWaiting,
            (JobState::Dead, false) if error_group.is_some() => Statement::PickDeadGroup,
            (JobState::Dead, false) => Statement::PickDead,
            (JobState::Dead, true) => Statement::PickTaggedDead,
            (finished, _) => {
                return Err(StoreError::Refused(
                    format!("bug: {} jobs cannot be picked for a change", finished.name()).into(),
                ));
            }
        };
        // A job without a failure belongs to no error group.
        let failed = pick.failed || error_group.is_some();
        let params: Params<'_> = &[
            type_id,
            &from.rank,
            &from.id,
            at_most,
            &pick.last_id,
            &pick.other_priority,
            &in_sql(conditions),
            &pick.held,
            &failed,
            &pick.failed_before,
            error_group,
        ];
        let rows = self.general().await?.query(statement, params).await?;
        Ok(Picked::from_rows(&rows, from.state, *at_most))
    }
}

/// Returns conditions in the form that SQL reads. `None` if no condition is set.
pub(super) fn in_sql(conditions: &JobConditions) -> Option<Json<&JobConditions>> {
    (!conditions.is_empty()).then_some(Json(conditions))
}
