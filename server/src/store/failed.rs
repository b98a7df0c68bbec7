//! Jobs worked on by the thousand: picked by type and error group; retried, discarded. And the groups.

use tokio_postgres::Row;

use super::{
    Statement, Store, StoreError,
    connection::Params,
    coordination::{Ended, Ending, Wakeups},
    transaction::until_it_wins,
};
use crate::job::{ErrorGroup, JobState, PagePosition, TypeId};

/// Which jobs to pick.
#[derive(Clone, Copy, Debug)]
pub struct PickArgs<'a> {
    /// Of this type.
    pub type_id: TypeId,
    /// From where on, and which state.
    pub from: PagePosition,
    /// Only of this error group; for scheduled and dead ones.
    pub error_group: Option<&'a str>,
    /// Of scheduled jobs only those that failed before.
    pub failed: bool,
    /// Jobs at most.
    pub at_most: i32,
}

/// Jobs to be worked on by id.
#[derive(Debug)]
pub struct Picked {
    /// Their ids; there may be none though some follow.
    pub ids: Vec<i64>,
    /// Where to look next; `None`: nothing is left of this state.
    pub next: Option<PagePosition>,
}

/// When retried jobs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryStart {
    /// At once.
    Now,
    /// At so many µs after 1970.
    At(i64),
    /// So many ms from now.
    After(i64),
}

/// What to do with jobs that are retried.
#[derive(Clone, Copy, Debug)]
pub struct RetryArgs<'a> {
    /// When they run.
    pub start: RetryStart,
    /// Only of this state; `None`: scheduled and dead ones.
    pub state: Option<JobState>,
    /// In the place of the old one.
    pub payload: Option<&'a [u8]>,
    /// Of scheduled jobs only those that failed before.
    pub failed: bool,
}

/// A job that was retried, or could not be.
#[derive(Clone, Copy, Debug)]
pub struct Retried {
    /// The job.
    pub id: i64,
    /// Its type.
    pub type_id: TypeId,
    /// Its rank, if it is ready now.
    pub rank: Option<i64>,
    /// It is still dead: another job has its key.
    pub key_held: bool,
    /// When it is due, in ms, if it is scheduled.
    pub due_in_ms: i64,
}

impl Store {
    /// Ids of a type's jobs of one state, from a position on.
    pub async fn pick(&self, pick: &PickArgs<'_>) -> Result<Picked, StoreError> {
        let PickArgs { type_id, from, error_group, failed, at_most } = pick;
        let group = *error_group;
        let by_rank: Params<'_> = &[type_id, &from.rank, &from.id, at_most];
        let by_group: Params<'_> = &[type_id, &group, &from.id, at_most];
        let (statement, params): (_, Params<'_>) = match from.state {
            JobState::Ready => (Statement::PickReady, by_rank),
            JobState::Leased => (Statement::PickLeased, by_rank),
            JobState::Waiting => (Statement::PickWaiting, by_rank),
            JobState::Scheduled => (Statement::PickScheduled, &[type_id, &group, &from.id, at_most, failed]),
            JobState::Dead if group.is_some() => (Statement::PickDeadGroup, by_group),
            JobState::Dead => (Statement::PickDead, by_rank),
            finished => return Err(StoreError::Refused(format!("{} jobs are never picked", finished.name()))),
        };
        let rows = self.general().await?.query(statement, params).await?;
        let is_picked = |row: &Row| row.get::<_, bool>("picked");
        let ids: Vec<i64> = rows.iter().filter(|row| is_picked(row)).map(|row| row.get("id")).collect();
        // A row that was only read says where to go on; so does the last one of a full page.
        let goes_on = |row: &&Row| !is_picked(row) || ids.len() >= *at_most as usize;
        let next = rows.last().filter(goes_on).map(|row| PagePosition {
            state: from.state,
            rank: row.get("rank"),
            id: row.get("id"),
        });
        Ok(Picked { ids, next })
    }

    /// Sets scheduled and dead jobs forward, those that it finds.
    pub async fn retry_jobs(&self, ids: &[i64], retry: &RetryArgs<'_>) -> Result<Vec<Retried>, StoreError> {
        let (run_at_us, delay_ms) = match retry.start {
            RetryStart::Now => (None, None),
            RetryStart::At(us) => (Some(us), None),
            RetryStart::After(ms) => (None, Some(ms)),
        };
        let from = |state| retry.state.is_none_or(|only| only == state);
        let (scheduled, dead) = (from(JobState::Scheduled), from(JobState::Dead));
        let mut connection = self.general().await?;
        let rows = connection
            .query(
                Statement::RetryJobs,
                &[&ids, &run_at_us, &delay_ms, &scheduled, &dead, &retry.payload, &retry.failed],
            )
            .await?;
        let retried = |row: &Row| Retried {
            id: row.get("id"),
            type_id: row.get("type_id"),
            rank: row.get("rank"),
            key_held: row.get("key_held"),
            due_in_ms: row.get("due_in_ms"),
        };
        Ok(rows.iter().map(retried).collect())
    }

    /// Gives dead jobs up; those that it found, and what follows.
    pub async fn discard_jobs(&self, ids: &[i64]) -> Result<(Vec<i64>, Wakeups), StoreError> {
        until_it_wins(|| self.discard_once(ids)).await
    }

    async fn discard_once(&self, ids: &[i64]) -> Result<(Vec<i64>, Wakeups), StoreError> {
        let mut transaction = self.begin().await?;
        let rows = transaction.query(Statement::DiscardJobs, &[&ids]).await?;
        let ended: Vec<Ended> = rows.iter().filter_map(|row| Ended::coordinated(row, Ending::Discarded)).collect();
        let wakeups = transaction.after_end(&ended).await?;
        transaction.commit().await?;
        Ok((rows.iter().map(|row| row.get("id")).collect(), wakeups))
    }

    /// The groups with most jobs, of a type or of all; and whether some jobs were not read.
    pub async fn error_groups(
        &self,
        type_id: Option<TypeId>,
        at_most: i32,
    ) -> Result<(Vec<ErrorGroup>, bool), StoreError> {
        let rows = self.general().await?.query(Statement::ListErrorGroups, &[&type_id, &at_most]).await?;
        let partial = rows.first().is_some_and(|row| row.get("partial"));
        let group = |row: &Row| ErrorGroup {
            task_type: row.get("task_type"),
            error_group: row.get("error_group"),
            dead: row.get("dead"),
            backing_off: row.get("backing_off"),
            first: row.get("first_time"),
            last: row.get("last_time"),
            example_id: row.get("example_id"),
            example_error: row.get::<_, Option<String>>("example_error").unwrap_or_default(),
        };
        Ok((rows.iter().map(group).collect(), partial))
    }
}
