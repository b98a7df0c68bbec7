//! Statements of operators' calls: get a job, list jobs, find the jobs with the most attempts, cancel jobs.

use std::time::SystemTime;

use bytes::Bytes;
use howdah_core::job::{Chosen, Failure, JobConditions, JobState, JobView, PagePosition, TypeId};
use serde::Deserialize;
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    connection::{Param, Params},
    coordination::{Ended, Ending, Wakeups},
    pick::in_sql,
    rows::{self, FromRow as _, from_row, json},
    transaction::{Transaction, retry_conflicts},
};

/// A cancelled job, and the lease that its worker lost.
#[derive(Clone, Copy, Debug)]
pub struct CancelledJob {
    pub id: i64,
    /// Fencing token of the lease, if the job was leased.
    pub token: Option<i64>,
    /// Broker that held the lease.
    pub broker_id: Option<i32>,
}

/// Query for a page of jobs.
#[derive(Clone, Copy, Debug)]
pub struct ListArgs<'a> {
    /// State of the jobs, and the position to start from.
    pub from: PagePosition,
    /// Whether to list all finished states together.
    pub any_finished: bool,
    /// Maximum number of jobs.
    pub at_most: i32,
    /// Whether to return the payload, the result and all failures. Otherwise only the last failure is returned.
    pub payload: bool,
    /// Maximum size of the page in bytes. The first job is returned even if it is larger.
    pub bytes: i64,
    /// Only dead jobs of this error group.
    pub error_group: Option<&'a str>,
    /// Conditions on the jobs.
    pub conditions: &'a JobConditions,
    /// Jobs that the worker of the conditions holds. `None` if the conditions name no worker.
    pub held: Option<&'a [i64]>,
}

/// A page of jobs.
#[derive(Debug)]
pub struct Listed {
    /// Jobs, each with the rank that the position of the next page needs: 0 unless the job is ready.
    pub jobs: Vec<(JobView, i64)>,
    /// Rank and id of the last job that was scanned. If this page is not full, the next page starts after it.
    pub last_scanned: Option<(i64, i64)>,
    /// Whether more jobs may follow, because the page ended at its limit of jobs or bytes.
    pub cut: bool,
    /// Approximate size of the jobs in bytes.
    pub bytes: i64,
}

/// Jobs that are finished or dead, for a caller who waits for their results.
pub struct EndedJobs {
    pub jobs: Vec<JobView>,
    /// Size of the jobs in bytes.
    pub bytes: i64,
    /// Whether more of the requested jobs have ended, but did not fit into the limit of bytes.
    pub cut: bool,
}

/// JSON form of a failure in the database.
#[derive(Deserialize)]
struct StoredFailure {
    attempt: i16,
    error: Option<String>,
    started: Option<jiff::Timestamp>,
    failed: Option<jiff::Timestamp>,
    details: Option<String>,
    place: Option<String>,
}

/// Maximum number of rows that one bounded scan step reads. The SQL statements contain the same number.
const STEP: i64 = 20_000;

/// A job that was attempted at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// Number of attempts started so far.
    pub attempt: i16,
    pub id: i64,
}

from_row! { Attempted(row) { attempt, id } }

/// Result of one bounded scan step.
#[derive(Debug, Default)]
pub struct AttemptsStep {
    /// Jobs with the most attempts among the scanned rows.
    pub jobs: Vec<Attempted>,
    /// Position at which the next scan step starts. `None` if no rows are left.
    pub next: Option<PagePosition>,
    /// Number of jobs scanned.
    pub scanned_count: i64,
}

from_row! { CancelledJob(row) { id, token, broker_id } }

impl Store {
    pub async fn get_job(&self, id: i64) -> Result<Option<JobView>, StoreError> {
        self.general().await?.find(Statement::GetJob, &[&id]).await
    }

    /// Returns the given jobs that are finished or dead: always the first such job, and others up to a total size of
    /// `bytes`.
    pub async fn ended_jobs(&self, ids: &[i64], bytes: i64) -> Result<EndedJobs, StoreError> {
        let rows = self.general().await?.query(Statement::EndedJobs, &[&ids, &bytes]).await?;
        let jobs: Vec<JobView> = rows::all(&rows);
        let (bytes, ended) = rows.last().map_or((0, 0), |row| (row.get("bytes"), row.get::<_, i64>("ended")));
        Ok(EndedJobs { cut: jobs.len() < ended as usize, jobs, bytes })
    }

    /// Returns a page of jobs in one state, from a position on. For finished jobs, the order is newest first, and
    /// position 0 is the start. `any_finished` lists all finished states.
    /// Without a type, the jobs of all types are listed.
    pub async fn list_jobs(&self, type_id: Option<TypeId>, list: &ListArgs<'_>) -> Result<Listed, StoreError> {
        let from = list.from;
        let statement = match from.state {
            JobState::Ready if type_id.is_none() => Statement::ListReadyOfAll,
            JobState::Ready => Statement::ListReady,
            JobState::Leased => Statement::ListLeased,
            JobState::Scheduled => Statement::ListScheduled,
            JobState::Waiting => Statement::ListWaiting,
            JobState::Dead if list.error_group.is_some() => Statement::ListDeadGroup,
            JobState::Dead if type_id.is_none() => Statement::ListDeadOfAll,
            JobState::Dead => Statement::ListDead,
            _ => Statement::ListFinished,
        };
        let outcome = (!list.any_finished).then(|| from.state.name());
        let second: Param<'_> = match statement {
            Statement::ListDeadGroup => &list.error_group,
            Statement::ListFinished => &outcome,
            _ => &from.rank,
        };
        let ListArgs { at_most, payload, bytes, held, .. } = list;
        let conditions = in_sql(list.conditions);
        let params: Params<'_> = &[&type_id, second, &from.id, at_most, payload, bytes, &conditions, held];
        let rows = self.read(statement, params).await?;
        let last = |row: &Row| row.get::<_, Option<i64>>("last_rank").zip(row.get("last_id"));
        let last_scanned = rows.first().and_then(last);
        let found = rows.iter().filter(|row| row.get::<_, Option<i64>>("id").is_some());
        let jobs: Vec<_> = found.map(|row| (JobView::from_row(row), row.get::<_, i64>("rank"))).collect();
        let in_page = rows.first().map_or(0, |row| row.get::<_, i64>("page_rows"));
        // True if the page ended at its limit of bytes or jobs, because then more jobs may follow.
        let cut = !jobs.is_empty() && (rows.len() < in_page as usize || jobs.len() >= list.at_most as usize);
        let bytes = rows.last().map_or(0, |row| row.get("bytes"));
        Ok(Listed { jobs, last_scanned, cut, bytes })
    }

    /// Runs one bounded scan step over unfinished jobs in one state, from a position on. Dead jobs need only one step,
    /// because an index orders them by attempts.
    pub async fn most_attempts(
        &self,
        type_id: TypeId,
        from: PagePosition,
        at_most: i32,
    ) -> Result<AttemptsStep, StoreError> {
        let statement = match from.state {
            JobState::Ready => Statement::MostAttemptsReady,
            JobState::Leased => Statement::MostAttemptsLeased,
            JobState::Scheduled => Statement::MostAttemptsScheduled,
            JobState::Waiting => Statement::MostAttemptsWaiting,
            _ => return self.most_attempts_dead(type_id, at_most).await,
        };
        let rows = self.read(statement, &[&type_id, &from.rank, &from.id, &at_most]).await?;
        let mut step = AttemptsStep::default();
        for row in &rows {
            let id = row.get("id");
            match row.get::<_, Option<i64>>("scanned_count") {
                None => step.jobs.push(Attempted { attempt: row.get("attempt"), id }),
                Some(scanned_count) => {
                    step.scanned_count = scanned_count;
                    step.next = (scanned_count >= STEP).then(|| PagePosition { rank: row.get("rank"), id, ..from });
                }
            }
        }
        Ok(step)
    }

    async fn most_attempts_dead(&self, type_id: TypeId, at_most: i32) -> Result<AttemptsStep, StoreError> {
        let rows = self.read(Statement::MostAttemptsDead, &[&type_id, &at_most]).await?;
        Ok(AttemptsStep { jobs: rows::all(&rows), ..AttemptsStep::default() })
    }

    /// Cancels the given jobs, or only the jobs in one state. May miss a job that changes its state concurrently.
    /// Returns also wake-ups.
    pub async fn cancel(
        &self,
        jobs: &Chosen,
        only: Option<JobState>,
        by: &Actor,
    ) -> Result<(Vec<CancelledJob>, Wakeups), StoreError> {
        let run = || async move {
            let mut transaction = self.begin().await?;
            let cancelled = transaction.cancel(jobs, only, by).await?;
            transaction.commit().await?;
            Ok(cancelled)
        };
        retry_conflicts(run).await
    }

    /// Returns one of the given jobs that is ready, leased, scheduled or waiting, and that history may not keep if it
    /// succeeds, with the name of its type. `types` are the task types whose history does not keep every job.
    pub async fn live_unkept(&self, ids: &[i64], types: &[TypeId]) -> Result<Option<(i64, String)>, StoreError> {
        self.hot().await?.find(Statement::LiveUnkept, &[&ids, &types]).await
    }

    /// Returns the given jobs that are not in history. Dead jobs are included.
    pub async fn still_live(&self, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.hot().await?.list(Statement::StillLive, &[&ids]).await
    }
}

impl Transaction<'_> {
    /// Cancels jobs, as [`Store::cancel`] does.
    pub(super) async fn cancel(
        &mut self,
        jobs: &Chosen,
        only: Option<JobState>,
        by: &Actor,
    ) -> Result<(Vec<CancelledJob>, Wakeups), StoreError> {
        let states = only.map(|state| vec![state.name()]);
        let rows = self.query(Statement::Cancel, &[&jobs.ids, &states, &jobs.types()]).await?;
        let ended = |row| Ended::coordinated(row, Ending::Cancelled, row.get("attempt_start"));
        let ended: Vec<Ended> = rows.iter().filter_map(ended).collect();
        let wakeups = self.after_end(&ended).await?;
        self.record(by, &Change::of_jobs(rows.iter().map(|row| (row.get("id"), row.get("type_id"))))).await?;
        Ok((rows::all(&rows), wakeups))
    }
}

from_row! {
    JobView(row) {
        id,
        // A database that was restored or promoted may lack the task type.
        task_type: row.get::<_, Option<String>>("task_type").unwrap_or_else(|| "?".into()),
        state: JobState::from_name(row.get("state")).unwrap_or(JobState::Discarded),
        priority, attempt, max_attempts, key, created, run_at, leased_at, finished, deadline,
        headers: json(row, "headers").unwrap_or_default(),
        failures: json::<Vec<_>>(row, "failures").unwrap_or_default().into_iter().map(failure).collect(),
        payload: bytes(row, "payload"), result: bytes(row, "result"),
        // Only statements that read a single job select the columns `options` and `broker`.
        options: json(row, "options"), broker: row.try_get("broker").unwrap_or_default(),
        coordination: json(row, "coordination"), original_task_type,
        tags: json(row, "tags").unwrap_or_default(),
        worker: None,
    }
}

fn bytes(row: &Row, column: &str) -> Option<Bytes> {
    row.get::<_, Option<&[u8]>>(column).map(Bytes::copy_from_slice)
}

fn failure(stored: StoredFailure) -> Failure {
    Failure {
        attempt: stored.attempt,
        error: stored.error.unwrap_or_default(),
        started: stored.started.map(SystemTime::from),
        failed: stored.failed.map(SystemTime::from),
        details: stored.details.unwrap_or_default(),
        place: stored.place.unwrap_or_default(),
    }
}

/// Parses failed attempts from the JSON form in the database. Returns an empty list if the JSON is invalid.
#[cfg(feature = "archive")]
pub(crate) fn failures_of(json: &str) -> Vec<Failure> {
    let stored: Vec<StoredFailure> = serde_json::from_str(json).unwrap_or_default();
    stored.into_iter().map(failure).collect()
}
