//! Why a job does not run: what the tables say.

use std::time::SystemTime;

use super::{Statement, Store, StoreError};
use crate::job::{JobState, RelatedJob, TypeId};

/// A job, with what its type, its key and its broker say.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "these are independent facts")]
pub struct JobFacts {
    /// The job.
    pub id: i64,
    /// Its state.
    pub state: JobState,
    /// Its type.
    pub type_id: TypeId,
    /// The name of its type.
    pub task_type: String,
    /// Its rank.
    pub rank: i64,
    /// Attempts started so far.
    pub attempt: i16,
    /// Attempts allowed.
    pub max_attempts: i16,
    /// The time of the statement.
    pub now: SystemTime,
    /// When it may start.
    pub run_at: Option<SystemTime>,
    /// When its last attempt started.
    pub leased_at: Option<SystemTime>,
    /// When it finished or died.
    pub finished: Option<SystemTime>,
    /// When its attempt times out.
    pub deadline: Option<SystemTime>,
    /// Bytes of payload and headers; ready jobs only.
    pub weight: Option<i64>,
    /// The broker of its lease.
    pub broker: Option<String>,
    /// Whether that broker does not renew its lease any more.
    pub broker_gone: bool,
    /// Its limit key.
    pub limit_key: Option<String>,
    /// Its fairness key.
    pub fair_key: Option<String>,
    /// Its last error.
    pub error: Option<String>,
    /// Whether its last attempt failed.
    pub failed_last: bool,
    /// The job with its key that it runs after.
    pub queued_behind: Option<i64>,
    /// Another job that holds its key.
    pub key_holder: Option<i64>,
    /// The jobs that it runs after, the first 11.
    pub after: Vec<i64>,
    /// Whether its type is paused.
    pub paused: bool,
    /// Whether its type moves from this store or to it, and rests meanwhile.
    pub moves: bool,
    /// Jobs of its type that may run.
    pub max_running: Option<i32>,
    /// Starts of its type per second.
    pub rate_per_s: Option<f64>,
    /// Jobs of its limit key that may run.
    pub key_max_running: Option<i32>,
    /// Starts of its limit key per second,
    pub key_rate_per_s: Option<f64>,
    /// and at once.
    pub key_rate_burst: Option<i32>,
    /// The least time between two starts of its limit key, ms.
    pub key_min_gap_ms: Option<i64>,
    /// Whether jobs of a limit key keep their order.
    pub key_strict: bool,
    /// The bulk operation that cancelled or discarded it, and the reason that was given for that, which may be empty.
    pub ended_by: Option<(i64, String)>,
    /// The last time that a bulk operation had ended it and another one put it back.
    pub undone: Option<Undone>,
}

/// A job that a bulk operation had ended is what it was.
#[derive(Clone, Debug)]
pub struct Undone {
    /// The bulk operation that had ended it,
    pub bulk: i64,
    /// `cancel` or `discard`, if its row is still kept,
    pub operation: Option<String>,
    /// and when.
    pub ended: SystemTime,
    /// When it was put back.
    pub undone: SystemTime,
    /// The undo and who started it, if its row is still kept.
    pub by: Option<(i64, String)>,
}

/// Where a ready job stands.
#[derive(Clone, Copy, Debug)]
pub struct ReadyFacts {
    /// Jobs that go first, counted up to a bound.
    pub before: i64,
    /// Some of these have another fairness key.
    pub takes_turns: bool,
    /// Running jobs of its type, counted up to its limit.
    pub running: i64,
    /// When the rate limit of its type allows a start.
    pub next_token: Option<SystemTime>,
    /// When a program last called for jobs of its type without a stream, by the notes of all brokers.
    pub pulled: Option<SystemTime>,
    /// Attempts of its type that have succeeded or failed in the last minutes,
    pub settled: i64,
    /// in so many seconds.
    pub settled_s: f64,
}

/// The state of a limit key.
#[derive(Clone, Debug)]
pub struct LimitKeyFacts {
    /// Whether it is paused,
    pub paused: bool,
    /// and until when; `None`: until it is resumed.
    pub paused_until: Option<SystemTime>,
    /// When the gap after the last start is over.
    pub gap_over: Option<SystemTime>,
    /// When its rate limit allows a start.
    pub next_token: Option<SystemTime>,
    /// The jobs in its slots, with their states.
    pub slots: Vec<(i64, JobState)>,
    /// Jobs that go first, counted up to a bound.
    pub before: i64,
}

impl Store {
    /// What is known of a job; `None`: it does not exist.
    pub async fn explain_job(&self, id: i64) -> Result<Option<JobFacts>, StoreError> {
        let rows = self.general().await?.query(Statement::ExplainJob, &[&id]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(JobFacts {
            id,
            state: JobState::from_name(row.get("state")).unwrap_or(JobState::Discarded),
            type_id: row.get("type_id"),
            task_type: row.get("task_type"),
            rank: row.get("rank"),
            attempt: row.get("attempt"),
            max_attempts: row.get("max_attempts"),
            now: row.get("now"),
            run_at: row.get("run_at"),
            leased_at: row.get("leased_at"),
            finished: row.get("finished"),
            deadline: row.get("deadline"),
            weight: row.get("weight"),
            broker: row.get("broker"),
            broker_gone: row.get("broker_gone"),
            limit_key: row.get("limit_key"),
            fair_key: row.get("fair_key"),
            error: row.get("error"),
            failed_last: row.get::<_, Option<bool>>("failed_last").unwrap_or(false),
            queued_behind: row.get("queued_behind"),
            key_holder: row.get("key_holder"),
            after: row.get("after"),
            paused: row.get("paused"),
            moves: row.get("moves"),
            max_running: row.get("max_running"),
            rate_per_s: row.get("rate_per_s"),
            key_max_running: row.get("key_max_running"),
            key_rate_per_s: row.get("key_rate_per_s"),
            key_rate_burst: row.get("key_rate_burst"),
            key_min_gap_ms: row.get("key_min_gap_ms"),
            key_strict: row.get("key_strict"),
            ended_by: row.get::<_, Option<i64>>("bulk_id").map(|id| (id, row.get("bulk_reason"))),
            undone: row.get::<_, Option<i64>>("undone_bulk_id").map(|bulk| Undone {
                bulk,
                operation: row.get("undone_operation"),
                ended: row.get("undone_changed"),
                undone: row.get("undone"),
                by: row.get::<_, Option<i64>>("undo_id").map(|id| (id, row.get("undo_principal"))),
            }),
        }))
    }

    /// Where a ready job stands: at most so many jobs before it are counted. All jobs of a rank below `floor` are claimed.
    pub async fn explain_ready(&self, job: &JobFacts, floor: i64, at_most: i64) -> Result<ReadyFacts, StoreError> {
        let mut connection = self.general().await?;
        let args = [&job.type_id as super::connection::Param<'_>, &job.rank, &job.id, &floor, &at_most, &job.fair_key];
        let row = connection.query_one(Statement::ExplainReady, &args).await?;
        Ok(ReadyFacts {
            before: row.get("before"),
            takes_turns: row.get("takes_turns"),
            running: row.get("running"),
            next_token: row.get("next_token"),
            pulled: row.get("pulled"),
            settled: row.get("settled"),
            settled_s: row.get("settled_s"),
        })
    }

    /// The limit key at which a job waits.
    pub async fn explain_limit_key(
        &self,
        job: &JobFacts,
        key: &str,
        at_most: i64,
    ) -> Result<LimitKeyFacts, StoreError> {
        let has_started = job.attempt > 0;
        let mut connection = self.general().await?;
        let args = [&job.type_id as super::connection::Param<'_>, &key, &job.rank, &job.id, &has_started, &at_most];
        let row = connection.query_one(Statement::ExplainLimitKey, &args).await?;
        let of = |column, state| row.get::<_, Vec<i64>>(column).into_iter().map(move |id| (id, state));
        let slots = of("leased", JobState::Leased)
            .chain(of("ready", JobState::Ready))
            .chain(of("scheduled", JobState::Scheduled))
            .collect();
        Ok(LimitKeyFacts {
            paused: row.get("paused"),
            paused_until: row.get("paused_until"),
            gap_over: row.get("gap_over"),
            next_token: row.get("next_token"),
            slots,
            before: row.get("before"),
        })
    }

    /// The types and states of jobs; those that do not exist are unknown.
    pub async fn states_of_jobs(&self, ids: &[i64]) -> Result<Vec<RelatedJob>, StoreError> {
        let rows = self.general().await?.query(Statement::StatesOfJobs, &[&ids]).await?;
        let known = |id: i64| {
            let row = rows.iter().find(|row| row.get::<_, i64>("id") == id)?;
            Some((row.get("task_type"), JobState::from_name(row.get("state"))?))
        };
        Ok(ids.iter().map(|&id| RelatedJob { id, known: known(id) }).collect())
    }
}
