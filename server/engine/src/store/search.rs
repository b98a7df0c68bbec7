//! Searches for jobs: by key or tag with an index, and by content in bounded scan steps.

use std::time::Duration;

use howdah_core::job::{Having, JobConditions, JobState, JobView, PagePosition, SearchRange, TypeId};

use super::{Statement, Store, StoreError, connection::Param, pick::in_sql, rows};

/// Parameters of one bounded scan step of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchStep<'a> {
    /// Task type of the jobs.
    pub type_id: TypeId,
    /// State and time range to scan.
    pub range: &'a SearchRange,
    /// Content of the jobs. `None` matches every job.
    pub having: Option<&'a Having>,
    /// Further conditions on the jobs.
    pub conditions: &'a JobConditions,
    /// Position of the last job that the previous step scanned.
    pub from: PagePosition,
    /// Maximum number of jobs to scan.
    pub rows: i32,
    /// Maximum payload bytes to scan. The first job is scanned even if it is larger.
    pub bytes: i64,
    /// Maximum number of jobs to find.
    pub found: i32,
    /// Statement timeout of the step. A step that exceeds it returns `TimedOut`.
    pub within: Duration,
}

/// A job that a step scanned.
#[derive(Clone, Copy, Debug)]
pub struct Scanned {
    /// Position of the job in the order of the scan.
    pub at: PagePosition,
    /// Number of jobs that the step scanned up to and including this one.
    pub ordinal: i64,
}

/// Result of one bounded scan step.
#[derive(Debug)]
pub enum SearchStepResult {
    /// The step has scanned at least one job.
    To {
        /// Jobs that match the condition of the search.
        found: Vec<Scanned>,
        /// Last job that the step scanned.
        last: Scanned,
    },
    /// The step found no jobs left to scan.
    End,
    /// The step exceeded its timeout.
    TimedOut,
}

/// Jobs found by id.
#[derive(Debug)]
pub struct FoundJobs {
    /// Jobs in the order of the requested ids.
    pub jobs: Vec<JobView>,
    /// Whether more of the requested jobs exist, but did not fit into the limit of bytes.
    pub cut: bool,
    /// Size of the jobs in bytes.
    pub bytes: i64,
}

impl Store {
    /// Returns ids of jobs with a key, newest first, below `before` (0: from the newest).
    pub async fn search_key(
        &self,
        type_id: TypeId,
        key: &str,
        before: i64,
        at_most: i32,
    ) -> Result<Vec<i64>, StoreError> {
        Ok(rows::all(&self.read(Statement::SearchKey, &[&type_id, &key, &before, &at_most]).await?))
    }

    /// Counts jobs with a key, up to `at_most`.
    pub async fn count_key(&self, type_id: TypeId, key: &str, at_most: i64) -> Result<i64, StoreError> {
        let row = self.read_one(Statement::CountKey, &[&type_id, &key, &at_most]).await?;
        Ok(row.get("jobs"))
    }

    /// Returns ids of jobs that may have a tag, newest first, below `before` (0: from the newest). May repeat an id.
    pub async fn search_tag(
        &self,
        type_id: TypeId,
        tag: &str,
        before: i64,
        at_most: i32,
    ) -> Result<Vec<i64>, StoreError> {
        let rows = self.read(Statement::SearchTag, &[&type_id, &tag, &before, &at_most]).await?;
        Ok(rows.iter().map(|row| row.get("id")).collect())
    }

    /// Counts jobs with a tag, up to `at_most`.
    pub async fn count_tag(&self, type_id: TypeId, tag: &str, at_most: i64) -> Result<i64, StoreError> {
        let row = self.read_one(Statement::CountTag, &[&type_id, &tag, &at_most]).await?;
        Ok(row.get("jobs"))
    }

    /// Runs one bounded scan step of a search.
    pub async fn search_step(&self, step: &SearchStep<'_>) -> Result<SearchStepResult, StoreError> {
        let SearchStep { range, from, .. } = *step;
        let statement = match range.state {
            JobState::Ready => Statement::SearchReady,
            JobState::Leased => Statement::SearchLeased,
            JobState::Scheduled => Statement::SearchScheduled,
            JobState::Waiting => Statement::SearchWaiting,
            JobState::Dead => Statement::SearchDead,
            _ => Statement::SearchFinished,
        };
        let outcome = range.state.name();
        let second: Param<'_> = if statement == Statement::SearchFinished { &outcome } else { &from.rank };
        let (mut header, mut value, mut text, mut path) = (None, None, None, None);
        match step.having {
            Some(Having::Header { name, value: wanted }) => (header, value) = (Some(name), Some(wanted)),
            Some(Having::Text(wanted)) => text = Some(wanted.as_bytes()),
            Some(Having::Path(wanted)) => path = Some(wanted),
            None => {}
        }
        let conditions = in_sql(step.conditions);
        let params: [Param<'_>; 13] = [
            &step.type_id,
            second,
            &from.id,
            &step.rows,
            &step.bytes,
            &range.since,
            &range.until,
            &header,
            &value,
            &text,
            &path,
            &step.found,
            &conditions,
        ];
        let rows = match self.read_within(step.within, statement, &params).await {
            Ok(rows) => rows,
            Err(error) if error.is_timeout() => return Ok(SearchStepResult::TimedOut),
            Err(error) => return Err(error),
        };
        let mut scanned_count: Vec<Scanned> = rows
            .iter()
            .map(|row| Scanned {
                at: PagePosition { state: range.state, rank: row.get("rank"), id: row.get("id") },
                ordinal: row.get("ordinal"),
            })
            .collect();
        Ok(match scanned_count.pop() {
            Some(last) => SearchStepResult::To { found: scanned_count, last },
            None => SearchStepResult::End,
        })
    }

    /// Returns the given jobs that exist: always the first such job, and others up to a total size of `bytes`. With
    /// `payload`, the jobs have payloads and all failures, otherwise only the last failure. Jobs that do not meet the
    /// conditions are left out.
    pub async fn found_jobs(
        &self,
        ids: &[i64],
        bytes: i64,
        payload: bool,
        conditions: &JobConditions,
    ) -> Result<FoundJobs, StoreError> {
        let rows = self.read(Statement::FoundJobs, &[&ids, &bytes, &payload, &in_sql(conditions)]).await?;
        let jobs: Vec<JobView> = rows::all(&rows);
        let (found, bytes) = rows.last().map_or((0, 0), |row| (row.get::<_, i64>("found"), row.get("bytes")));
        Ok(FoundJobs { cut: jobs.len() < found as usize, jobs, bytes })
    }

    /// Estimates the number of finished jobs in the range of a search.
    pub async fn estimate_finished(&self, range: &SearchRange) -> Result<i64, StoreError> {
        let row = self.read_one(Statement::EstimateFinished, &[&range.since, &range.until]).await?;
        Ok(row.get("jobs"))
    }

    /// Returns the error of Postgres for a JSON path. `None` if the path is valid.
    pub async fn json_path_problem(&self, path: &str) -> Result<Option<String>, StoreError> {
        self.general().await?.one(Statement::JsonPathProblem, &[&path]).await
    }
}
