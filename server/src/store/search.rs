//! Searches: jobs by key or tag, and steps of a look at jobs one by one.

use std::time::Duration;

use super::{Statement, Store, StoreError, connection::Param, jobs::job_view};
use crate::job::{Having, JobState, JobView, PagePosition, SearchRange, TypeId};

/// A step of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchStep<'a> {
    /// The type to look for.
    pub type_id: TypeId,
    /// Where to look.
    pub range: &'a SearchRange,
    /// What the jobs have; `None`: nothing is compared.
    pub having: Option<&'a Having>,
    /// The job after which the step begins.
    pub from: PagePosition,
    /// The most jobs to look at.
    pub rows: i32,
    /// The most bytes of payloads to look at, in addition to the first.
    pub bytes: i64,
    /// The most jobs to find.
    pub found: i32,
    /// How long it may take.
    pub within: Duration,
}

/// A job that a step looked at.
#[derive(Clone, Copy, Debug)]
pub struct LookedAt {
    /// Its position.
    pub at: PagePosition,
    /// How many jobs the step had looked at with it.
    pub ordinal: i64,
}

/// What a step did.
#[derive(Debug)]
pub enum Stepped {
    /// It looked at jobs.
    To {
        /// Those that it found.
        found: Vec<LookedAt>,
        /// The last one that it looked at.
        last: LookedAt,
    },
    /// There was nothing left to look at.
    End,
    /// It took too long.
    TimedOut,
}

/// Jobs by id.
#[derive(Debug)]
pub struct FoundJobs {
    /// The jobs, in the order of the ids.
    pub jobs: Vec<JobView>,
    /// Whether more of them did not fit.
    pub cut: bool,
    /// Their bytes.
    pub bytes: i64,
}

impl Store {
    /// Ids of jobs of a key, the newest first, below `before` (0: the newest).
    pub async fn search_key(
        &self,
        type_id: TypeId,
        key: &str,
        before: i64,
        at_most: i32,
    ) -> Result<Vec<i64>, StoreError> {
        let rows = self.read(Statement::SearchKey, &[&type_id, &key, &before, &at_most]).await?;
        Ok(rows.iter().map(|row| row.get("id")).collect())
    }

    /// How many there are, counted up to a bound.
    pub async fn count_key(&self, type_id: TypeId, key: &str, at_most: i64) -> Result<i64, StoreError> {
        let row = self.read_one(Statement::CountKey, &[&type_id, &key, &at_most]).await?;
        Ok(row.get("jobs"))
    }

    /// Ids of jobs that may have a tag, the newest first, below `before` (0: the newest). A job may come several times.
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

    /// How many there are, counted up to a bound.
    pub async fn count_tag(&self, type_id: TypeId, tag: &str, at_most: i64) -> Result<i64, StoreError> {
        let row = self.read_one(Statement::CountTag, &[&type_id, &tag, &at_most]).await?;
        Ok(row.get("jobs"))
    }

    /// Looks at the next jobs.
    pub async fn search_step(&self, step: &SearchStep<'_>) -> Result<Stepped, StoreError> {
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
        let params: [Param<'_>; 12] = [
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
        ];
        let rows = match self.read_within(step.within, statement, &params).await {
            Ok(rows) => rows,
            Err(error) if error.is_timeout() => return Ok(Stepped::TimedOut),
            Err(error) => return Err(error),
        };
        let mut looked_at: Vec<LookedAt> = rows
            .iter()
            .map(|row| LookedAt {
                at: PagePosition { state: range.state, rank: row.get("rank"), id: row.get("id") },
                ordinal: row.get("ordinal"),
            })
            .collect();
        Ok(match looked_at.pop() {
            Some(last) => Stepped::To { found: looked_at, last },
            None => Stepped::End,
        })
    }

    /// Those of these jobs that exist: the first one, and as many more as fit into these bytes. `payload`: with payload and
    /// every failure instead of only the last.
    pub async fn found_jobs(&self, ids: &[i64], bytes: i64, payload: bool) -> Result<FoundJobs, StoreError> {
        let rows = self.read(Statement::FoundJobs, &[&ids, &bytes, &payload]).await?;
        let jobs: Vec<JobView> = rows.iter().map(|row| job_view(row, row.get("task_type"))).collect();
        let (found, bytes) = rows.last().map_or((0, 0), |row| (row.get::<_, i64>("found"), row.get("bytes")));
        Ok(FoundJobs { cut: jobs.len() < found as usize, jobs, bytes })
    }

    /// About how many finished jobs there are where a search looks.
    pub async fn estimate_finished(&self, range: &SearchRange) -> Result<i64, StoreError> {
        let row = self.read_one(Statement::EstimateFinished, &[&range.since, &range.until]).await?;
        Ok(row.get("jobs"))
    }

    /// What Postgres says of a path that is not valid.
    pub async fn json_path_problem(&self, path: &str) -> Result<Option<String>, StoreError> {
        let row = self.general().await?.query_one(Statement::JsonPathProblem, &[&path]).await?;
        Ok(row.get("problem"))
    }
}
