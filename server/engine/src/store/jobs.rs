//! Statements of operators' calls: get a job, list jobs, cancel jobs.

use std::{collections::HashMap, time::SystemTime};

use howdah_core::job::{Chosen, Failure, JobConditions, JobState, JobView, PagePosition, TypeId};
use postgres_types::Json;
use serde::Deserialize;
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    connection::{Param, Params},
    coordination::{Ended, Ending, Wakeups},
    pick::in_sql,
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

impl Store {
    pub async fn get_job(&self, id: i64) -> Result<Option<JobView>, StoreError> {
        let rows = self.general().await?.query(Statement::GetJob, &[&id]).await?;
        Ok(rows.first().map(|row| job_view(row, row.get("task_type"))))
    }

    /// Returns the given jobs that are finished or dead: always the first such job, and others up to a total size of
    /// `bytes`.
    pub async fn ended_jobs(&self, ids: &[i64], bytes: i64) -> Result<EndedJobs, StoreError> {
        let rows = self.general().await?.query(Statement::EndedJobs, &[&ids, &bytes]).await?;
        let jobs: Vec<_> = rows.iter().map(|row| job_view(row, row.get("task_type"))).collect();
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
        let jobs: Vec<_> = found.map(|row| (job_view(row, row.get("task_type")), row.get::<_, i64>("rank"))).collect();
        let in_page = rows.first().map_or(0, |row| row.get::<_, i64>("page_rows"));
        // True if the page ended at its limit of bytes or jobs, because then more jobs may follow.
        let cut = !jobs.is_empty() && (rows.len() < in_page as usize || jobs.len() >= list.at_most as usize);
        let bytes = rows.last().map_or(0, |row| row.get("bytes"));
        Ok(Listed { jobs, last_scanned, cut, bytes })
    }

    /// Cancels the given jobs, or only the jobs in one state. May miss a job that changes its state concurrently.
    /// Returns also wake-ups.
    pub async fn cancel(
        &self,
        jobs: &Chosen,
        only: Option<JobState>,
        by: &Actor,
    ) -> Result<(Vec<CancelledJob>, Wakeups), StoreError> {
        retry_conflicts(|| self.cancel_once(jobs, only, by)).await
    }

    async fn cancel_once(
        &self,
        jobs: &Chosen,
        only: Option<JobState>,
        by: &Actor,
    ) -> Result<(Vec<CancelledJob>, Wakeups), StoreError> {
        let mut transaction = self.begin().await?;
        let cancelled = transaction.cancel(jobs, only, by).await?;
        transaction.commit().await?;
        Ok(cancelled)
    }

    /// Returns one of the given jobs that is ready, leased, scheduled or waiting, and that history may not keep if it
    /// succeeds, with the name of its type. `types` are the task types whose history does not keep every job.
    pub async fn live_unkept(&self, ids: &[i64], types: &[TypeId]) -> Result<Option<(i64, String)>, StoreError> {
        let rows = self.hot().await?.query(Statement::LiveUnkept, &[&ids, &types]).await?;
        Ok(rows.first().map(|row| (row.get("id"), row.get("name"))))
    }

    /// Returns the given jobs that are not in history. Dead jobs are included.
    pub async fn still_live(&self, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        let rows = self.hot().await?.query(Statement::StillLive, &[&ids]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
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
        let cancelled =
            |row: &Row| CancelledJob { id: row.get("id"), token: row.get("token"), broker_id: row.get("broker_id") };
        Ok((rows.iter().map(cancelled).collect(), wakeups))
    }
}

pub(super) fn job_view(row: &Row, task_type: String) -> JobView {
    // A role with SQL access may have written invalid JSON values. They are read as empty, so that the job can be
    // shown.
    let headers: Option<Json<HashMap<String, String>>> = row.try_get("headers").unwrap_or_default();
    let failures: Option<Json<Vec<StoredFailure>>> = row.try_get("failures").unwrap_or_default();
    // Only statements that read a single job select the column `options`.
    let options: Option<Json<_>> = row.try_get("options").unwrap_or_default();
    let tags: Option<Json<Vec<String>>> = row.try_get("tags").unwrap_or_default();
    let bytes = |column| row.get::<_, Option<&[u8]>>(column).map(|b| b.to_vec().into());
    JobView {
        id: row.get("id"),
        task_type,
        state: JobState::from_name(row.get("state")).unwrap_or(JobState::Discarded),
        priority: row.get("priority"),
        attempt: row.get("attempt"),
        max_attempts: row.get("max_attempts"),
        key: row.get("key"),
        created: row.get("created"),
        run_at: row.get("run_at"),
        leased_at: row.get("leased_at"),
        finished: row.get("finished"),
        deadline: row.get("deadline"),
        headers: headers.map(|Json(h)| h).unwrap_or_default(),
        failures: failures.map(|Json(f)| f.into_iter().map(failure).collect()).unwrap_or_default(),
        payload: bytes("payload"),
        result: bytes("result"),
        options: options.map(|Json(options)| options),
        // Invalid options are ignored, because an operator must be able to read the job.
        coordination: row.try_get("coordination").ok().and_then(|view: Option<Json<_>>| view).map(|Json(view)| view),
        original_task_type: row.get("original_task_type"),
        tags: tags.map(|Json(tags)| tags).unwrap_or_default(),
        // Only statements that may return leased jobs select the column `broker`.
        broker: row.try_get("broker").unwrap_or_default(),
        worker: None,
    }
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
