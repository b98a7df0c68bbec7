//! Statements on failed jobs: retry them, discard them, list error groups.

use howdah_core::job::{Chosen, ErrorGroup, JobState, TypeId};

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    connection::Params,
    coordination::{Ended, Ending, Wakeups},
    rows::{self, from_row},
    transaction::{Transaction, retry_conflicts},
};

/// Start time of retried jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryStart {
    /// Start retried jobs at once.
    Now,
    /// Start retried jobs at this time, in µs since 1970.
    At(i64),
    /// Start retried jobs after this many ms.
    After(i64),
}

#[derive(Clone, Copy, Debug)]
pub struct RetryArgs<'a> {
    /// Start time of the jobs.
    pub start: RetryStart,
    /// Retry only jobs in this state. `None` for scheduled and dead jobs.
    pub state: Option<JobState>,
    /// New payload of the retried jobs. `None` keeps the payloads.
    pub payload: Option<&'a [u8]>,
    /// Whether to retry only scheduled jobs that have failed before.
    pub failed: bool,
}

/// Result of a retry for one job.
#[derive(Clone, Copy, Debug)]
pub struct Retried {
    pub id: i64,
    pub type_id: TypeId,
    /// Rank of the job, if it is ready.
    pub rank: Option<i64>,
    /// Whether the job stays dead because another job holds its key.
    pub key_held: bool,
    /// Time in ms until the job is due, if it is scheduled.
    pub due_in_ms: i64,
}

from_row! { Retried(row) { id, type_id, rank, key_held, due_in_ms } }

/// Query for the jobs that failed last.
#[derive(Clone, Copy, Debug)]
pub struct FailuresArgs<'a> {
    /// Type of the jobs; `None` for all types.
    pub type_id: Option<TypeId>,
    /// Only dead jobs, or only scheduled jobs; `None` for both.
    pub state: Option<JobState>,
    /// Only dead jobs of this error group.
    pub error_group: Option<&'a str>,
    /// Time and id of the failure before which the page starts; `None` for the newest.
    pub before: Option<FailedJob>,
    /// Maximum number of jobs.
    pub at_most: i32,
}

/// A job and the time of its last failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedJob {
    /// Time of the failure, in µs after 1970.
    pub failed_us: i64,
    pub id: i64,
}

from_row! { FailedJob(row) { failed_us, id } }

from_row! {
    ErrorGroup(row) {
        task_type, error_group, dead, backing_off, first: row.get("first_time"), last: row.get("last_time"), example_id,
        example_error: row.get::<_, Option<String>>("example_error").unwrap_or_default(),
    }
}

impl Store {
    /// Returns the jobs that failed last, the newest failure first.
    pub async fn newest_failures(&self, query: &FailuresArgs<'_>) -> Result<Vec<FailedJob>, StoreError> {
        let FailuresArgs { type_id, state, error_group, before, at_most } = query;
        let dead = state.is_none_or(|state| state == JobState::Dead);
        let backing_off = state.is_none_or(|state| state == JobState::Scheduled) && error_group.is_none();
        let (failed_us, id) = (before.map(|job| job.failed_us), before.map_or(i64::MAX, |job| job.id));
        let params: Params<'_> = &[type_id, &dead, &backing_off, error_group, &failed_us, &id, at_most];
        Ok(rows::all(&self.read(Statement::NewestFailures, params).await?))
    }

    /// Retries the given jobs that are scheduled or dead. Returns also the ids of dependent jobs that were cancelled
    /// because one of the given jobs died, and that wait again now.
    pub async fn retry_jobs(
        &self,
        jobs: &Chosen,
        retry: &RetryArgs<'_>,
        by: &Actor,
    ) -> Result<(Vec<Retried>, Vec<i64>), StoreError> {
        let run = || async move {
            let mut transaction = self.begin().await?;
            let retried = transaction.retry_jobs(jobs, retry, by).await?;
            transaction.commit().await?;
            Ok(retried)
        };
        retry_conflicts(run).await
    }

    /// Discards the given jobs that are dead. Returns their ids, and wake-ups.
    pub async fn discard_jobs(&self, jobs: &Chosen, by: &Actor) -> Result<(Vec<i64>, Wakeups), StoreError> {
        let run = || async move {
            let mut transaction = self.begin().await?;
            let discarded = transaction.discard_jobs(jobs, by).await?;
            transaction.commit().await?;
            Ok(discarded)
        };
        retry_conflicts(run).await
    }

    /// Returns the task types with dead jobs older than their `dead_days`, and this number of days.
    pub async fn types_with_old_dead(&self) -> Result<Vec<(TypeId, i32)>, StoreError> {
        self.general().await?.list(Statement::TypesWithOldDead, &[]).await
    }

    /// Discards at most `at_most` jobs of a task type that died more than `days` days ago. Skips locked jobs. Returns
    /// the number of discarded jobs, and wake-ups.
    pub async fn discard_old_dead(
        &self,
        type_id: TypeId,
        days: i32,
        at_most: i32,
        by: &Actor,
    ) -> Result<(usize, Wakeups), StoreError> {
        let mut transaction = self.begin().await?;
        let mut ids: Vec<i64> = transaction.list(Statement::LockOldDead, &[&type_id, &days, &at_most]).await?;
        if ids.is_empty() {
            return Ok((0, Wakeups::default()));
        }
        ids.sort_unstable();
        let (discarded, wakeups) = transaction.discard_jobs(&ids.into(), by).await?;
        transaction.commit().await?;
        Ok((discarded.len(), wakeups))
    }

    /// Returns the largest error groups of one task type or of all types. Also returns whether the counts may be too
    /// low, because some scheduled jobs were not read.
    pub async fn error_groups(
        &self,
        type_id: Option<TypeId>,
        at_most: i32,
    ) -> Result<(Vec<ErrorGroup>, bool), StoreError> {
        let rows = self.read(Statement::ListErrorGroups, &[&type_id, &at_most]).await?;
        let partial = rows.first().is_some_and(|row| row.get("partial"));
        Ok((rows::all(&rows), partial))
    }
}

impl Transaction<'_> {
    /// Retries the given jobs that are scheduled or dead, as [`Store::retry_jobs`] does.
    pub(super) async fn retry_jobs(
        &mut self,
        jobs: &Chosen,
        retry: &RetryArgs<'_>,
        by: &Actor,
    ) -> Result<(Vec<Retried>, Vec<i64>), StoreError> {
        let (run_at_us, delay_ms) = match retry.start {
            RetryStart::Now => (None, None),
            RetryStart::At(us) => (Some(us), None),
            RetryStart::After(ms) => (None, Some(ms)),
        };
        let from = |state| retry.state.is_none_or(|only| only == state);
        let (scheduled, dead) = (from(JobState::Scheduled), from(JobState::Dead));
        let rows = self
            .query(
                Statement::RetryJobs,
                &[&jobs.ids, &run_at_us, &delay_ms, &scheduled, &dead, &retry.payload, &retry.failed, &jobs.types()],
            )
            .await?;
        let parents: Vec<i64> = rows.iter().filter(|row| row.get("coordinated")).map(|row| row.get("id")).collect();
        let revived =
            if parents.is_empty() { Vec::new() } else { self.list(Statement::ReviveDependents, &[&parents]).await? };
        let done = rows.iter().filter(|row| !row.get::<_, bool>("key_held"));
        self.record(by, &Change::of_jobs(done.map(|row| (row.get("id"), row.get("type_id"))))).await?;
        Ok((rows::all(&rows), revived))
    }

    /// Discards the given jobs that are dead, as [`Store::discard_jobs`] does.
    pub(super) async fn discard_jobs(&mut self, jobs: &Chosen, by: &Actor) -> Result<(Vec<i64>, Wakeups), StoreError> {
        let rows = self.query(Statement::DiscardJobs, &[&jobs.ids, &jobs.types()]).await?;
        let ended = |row| Ended::coordinated(row, Ending::Discarded, None);
        let ended: Vec<Ended> = rows.iter().filter_map(ended).collect();
        let wakeups = self.after_end(&ended).await?;
        self.record(by, &Change::of_jobs(rows.iter().map(|row| (row.get("id"), row.get("type_id"))))).await?;
        Ok((rows.iter().map(|row| row.get("id")).collect(), wakeups))
    }
}
