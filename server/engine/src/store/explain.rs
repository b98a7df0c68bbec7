//! Queries for the facts from which the broker explains why a job does not run.

use std::{collections::HashMap, time::SystemTime};

use howdah_core::job::{Braked, JobState, RelatedJob, TypeId};

use super::{Statement, Store, StoreError, connection::Params, limits, rows::from_row};

/// A job, with facts about its task type, its keys and its broker.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub struct JobFacts {
    pub id: i64,
    pub state: JobState,
    pub type_id: TypeId,
    pub task_type: String,
    pub rank: i64,
    /// Attempts started so far.
    pub attempt: i16,
    pub max_attempts: i16,
    /// Database time at which the facts were read.
    pub now: SystemTime,
    /// Earliest start time. `None` unless the job is scheduled.
    pub run_at: Option<SystemTime>,
    /// Start time of the last attempt. `None` for ready and waiting jobs.
    pub leased_at: Option<SystemTime>,
    /// Time at which the job finished or became dead.
    pub finished: Option<SystemTime>,
    /// Deadline of the current attempt. `None` unless the job is leased and its lease has a deadline.
    pub deadline: Option<SystemTime>,
    /// Bytes of payload and headers. Set for ready jobs only.
    pub weight: Option<i64>,
    /// Name of the broker that holds the lease. `None` if the job is not leased, was pulled, or its broker row is
    /// deleted.
    pub broker: Option<String>,
    /// Whether the broker that holds the lease is lost: its own lease has expired, or its row is deleted.
    pub broker_gone: bool,
    pub limit_key: Option<String>,
    /// Number of jobs of the limit key that may run at once when the job starts, if the job sets it.
    pub limit_max: Option<i32>,
    pub fair_key: Option<String>,
    /// Error of the last failed attempt. `None` if no attempt has failed.
    pub error: Option<String>,
    /// Whether the last attempt failed. False if the job has failed before, but the last attempt was snoozed.
    pub failed_last: bool,
    /// Id of the job with the same key that must end before this job starts.
    pub queued_behind: Option<i64>,
    /// Id of another job that holds the key of this job. `None` if no other job holds it.
    pub key_holder: Option<i64>,
    /// Ids of jobs that must end before this job starts, at most 11.
    pub after: Vec<i64>,
    /// Whether the task type is paused.
    pub paused: bool,
    /// Whether the task type is moving from or to this store, which suspends its jobs.
    pub moves: bool,
    /// Maximum number of running jobs of the task type.
    pub max_running: Option<i32>,
    /// Rate limit of the task type, in starts per second.
    pub rate_per_s: Option<f64>,
    /// Rate limit per limit key, in starts per second.
    pub key_rate_per_s: Option<f64>,
    /// Burst of the rate limit per limit key, in starts.
    pub key_rate_burst: Option<i32>,
    /// Minimum gap per limit key before the start of a job, in ms.
    pub key_min_gap_ms: Option<i64>,
    /// Whether the gap counts from the end of a job.
    pub key_gap_from_end: bool,
    /// Whether jobs of one limit key start in strict order, so that a retried job blocks the jobs behind it.
    pub key_strict: bool,
    /// Id of the bulk operation that cancelled or discarded the job, and the reason given for that operation, which may
    /// be empty.
    pub ended_by: Option<(i64, String)>,
    /// The last time that a bulk operation ended the job and another bulk operation restored the job.
    pub undone: Option<Undone>,
}

from_row! {
    JobFacts(row) {
        id, state: JobState::from_name(row.get("state")).unwrap_or(JobState::Discarded),
        type_id, task_type, rank, attempt, max_attempts, now, run_at, leased_at, finished, deadline, weight,
        broker, broker_gone, limit_key, limit_max, fair_key,
        error, failed_last: row.get::<_, Option<bool>>("failed_last").unwrap_or(false),
        queued_behind, key_holder, after, paused, moves,
        max_running, rate_per_s, key_rate_per_s, key_rate_burst, key_min_gap_ms, key_gap_from_end, key_strict,
        ended_by: row.get::<_, Option<i64>>("bulk_id").map(|id| (id, row.get("bulk_reason"))),
        undone: row.get::<_, Option<i64>>("undone_bulk_id").map(|bulk| Undone {
            bulk,
            operation: row.get("undone_operation"),
            ended: row.get("undone_changed"),
            undone: row.get("undone"),
            by: row.get::<_, Option<i64>>("undo_id").map(|id| (id, row.get("undo_principal"))),
        }),
    }
}

/// How a bulk operation ended a job and another bulk operation restored the job.
#[derive(Clone, Debug)]
pub struct Undone {
    /// Id of the bulk operation that ended the job.
    pub bulk: i64,
    /// `cancel` or `discard`. `None` if the row of that bulk operation is deleted.
    pub operation: Option<String>,
    /// Time at which the job was ended.
    pub ended: SystemTime,
    /// Time at which the job was restored.
    pub undone: SystemTime,
    /// Id of the bulk operation that restored the job, and its principal. `None` if the row of the operation is
    /// deleted.
    pub by: Option<(i64, String)>,
}

/// Position of a ready job, and facts about its task type.
#[derive(Clone, Copy, Debug)]
pub struct ReadyFacts {
    /// Number of jobs that start before this job, counted up to `at_most`.
    pub before: i64,
    /// True if jobs with other fair keys start before this job, so that it waits for their turns.
    pub takes_turns: bool,
    /// Number of running jobs of the task type that count against `max_running`, counted up to `max_running`.
    pub running: i64,
    /// Time at which the rate limit of the task type allows the next start.
    pub next_token: Option<SystemTime>,
    /// State of the brake of the task type; `None` if it is not braked.
    pub braked: Option<Braked>,
    /// Time of the last pull of this task type at any broker. `None` if it was never pulled.
    pub pulled: Option<SystemTime>,
    /// Number of attempts of the task type that succeeded or failed in the last `settled_s` seconds.
    pub settled: i64,
    /// Length in seconds of the period in which `settled` was counted: at most the last six minutes. 0 if no job was
    /// settled in that time.
    pub settled_s: f64,
}

from_row! {
    ReadyFacts(row) {
        before, takes_turns, running, next_token, braked: limits::braked(row), pulled, settled, settled_s,
    }
}

/// State of a limit key.
#[derive(Clone, Debug)]
pub struct LimitKeyFacts {
    /// Whether the limit key is paused.
    pub paused: bool,
    /// End of the pause. `None` if an operator must resume the limit key.
    pub paused_until: Option<SystemTime>,
    /// Maximum number of running jobs of the limit key, for this job.
    pub max_running: Option<i32>,
    /// Time at which the minimum gap after the last start or end of a job with this limit key is over.
    pub gap_over: Option<SystemTime>,
    /// Time at which the rate limit of the limit key allows the next start.
    pub next_token: Option<SystemTime>,
    /// Jobs that occupy the slots of the limit key, with their states.
    pub slots: Vec<(i64, JobState)>,
    /// Number of jobs that start before this job, counted up to `at_most`.
    pub before: i64,
}

from_row! {
    LimitKeyFacts(row) {
        paused, paused_until, max_running, gap_over, next_token,
        slots: {
            let of = |state: JobState| row.get::<_, Vec<i64>>(state.name()).into_iter().map(move |id| (id, state));
            [JobState::Leased, JobState::Ready, JobState::Scheduled].into_iter().flat_map(of).collect()
        },
        before,
    }
}

impl Store {
    /// Returns facts about a job. `None` if the job does not exist.
    pub async fn explain_job(&self, id: i64) -> Result<Option<JobFacts>, StoreError> {
        self.general().await?.find(Statement::ExplainJob, &[&id]).await
    }

    /// Returns facts about a ready job. Counts at most `at_most` jobs ahead of it. Skips ranks below `floor`, because
    /// all jobs with these ranks were claimed, and only dead rows are left.
    pub async fn explain_ready(&self, job: &JobFacts, floor: i64, at_most: i64) -> Result<ReadyFacts, StoreError> {
        let args: Params<'_> = &[&job.type_id, &job.rank, &job.id, &floor, &at_most, &job.fair_key];
        self.general().await?.one(Statement::ExplainReady, args).await
    }

    /// Returns the state of the limit key for which a job waits.
    pub async fn explain_limit_key(
        &self,
        job: &JobFacts,
        key: &str,
        at_most: i64,
    ) -> Result<LimitKeyFacts, StoreError> {
        let has_started = job.attempt > 0;
        let args: Params<'_> = &[&job.type_id, &key, &job.rank, &job.id, &has_started, &at_most, &job.limit_max];
        self.general().await?.one(Statement::ExplainLimitKey, args).await
    }

    /// Returns the task types and states of jobs. A job that does not exist has neither.
    pub async fn states_of_jobs(&self, ids: &[i64]) -> Result<Vec<RelatedJob>, StoreError> {
        let rows = self.general().await?.query(Statement::StatesOfJobs, &[&ids]).await?;
        let mut known: HashMap<i64, (String, JobState)> = HashMap::with_capacity(rows.len());
        for row in &rows {
            if let Some(state) = JobState::from_name(row.get("state")) {
                known.entry(row.get("id")).or_insert_with(|| (row.get("task_type"), state));
            }
        }
        Ok(ids.iter().map(|&id| RelatedJob { id, known: known.remove(&id) }).collect())
    }
}
