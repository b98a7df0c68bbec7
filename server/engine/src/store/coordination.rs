//! Statements on coordinated jobs: jobs whose end affects others, because they have a limit key, dependents, stages or
//! waiting callers. SQL functions of the schema do the work.

use std::time::SystemTime;

use howdah_core::job::{Lease, Ready, TypeId};
use postgres_types::Json;
use serde_json::Value;
use tokio_postgres::Row;

use super::{
    Acked, Statement, Store, StoreError,
    rows::{FromRow as _, from_row},
    settle::lease_columns,
    transaction::{Transaction, retry_conflicts, retry_while_locked_in_side_lane},
};

/// How a job ended, or left its state without an end (SQL type `howdah.ending`). Dependent jobs react to the ending.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// The job is scheduled again (retry or snooze). Only its slot of the limit key becomes free.
    Moved,
    /// The job continues in its fallback type. Its key and its slot of the limit key become free.
    Fallback,
    /// The job is dead.
    Dead,
    /// The job was cancelled.
    Cancelled,
    /// The job had not started by its expiry time.
    Expired,
    /// The job was dead and was discarded.
    Discarded,
}

impl Ending {
    const fn name(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Fallback => "fallback",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Discarded => "discarded",
        }
    }
}

/// Wake-ups for brokers: the work that a statement has made possible.
#[derive(Clone, Debug, Default)]
pub struct Wakeups {
    /// Jobs that became ready.
    pub ready: Vec<Ready>,
    /// Time in µs until the first scheduled job is due.
    pub due_in_us: Option<i64>,
    /// Whether limit keys must be checked for free slots now.
    pub limits: bool,
    /// Time in µs until the next check of a limit key.
    pub limit_in_us: Option<i64>,
}

impl Wakeups {
    /// Adds a row of the SQL type `howdah.wakeup`. False if the row is no wake-up, but the result for a job.
    pub(super) fn add(&mut self, row: &Row) -> bool {
        match row.get::<_, Option<&str>>("kind") {
            Some("ready") => self.ready.push(Ready {
                type_id: row.get("type_id"),
                lowest_rank: row.get("rank"),
                jobs: row.get::<_, i64>("jobs") as u64,
            }),
            Some("scheduled") => {
                let us: i64 = row.get("in_us");
                self.due_in_us = Some(self.due_in_us.map_or(us, |sooner| sooner.min(us)));
            }
            Some("limit_later") => self.limit_in_us = Some(row.get("in_us")),
            // The kind of wake-up is `limit`, or a kind that a newer release has added. For an unknown kind, the check
            // of limit keys is not needed, but costs little.
            Some(_) => self.limits = true,
            None => return false,
        }
        true
    }

    pub(super) fn from_rows(rows: &[Row]) -> Self {
        let mut wakeups = Self::default();
        for row in rows {
            wakeups.add(row);
        }
        wakeups
    }

    /// Returns the number of jobs that became ready.
    pub fn ready_jobs(&self) -> u64 {
        self.ready.iter().map(|ready| ready.jobs).sum()
    }
}

/// A job that has ended or left its state, as an argument of the SQL function `howdah.after_end`.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(super) id: i64,
    pub(super) type_id: TypeId,
    pub(super) key: Option<String>,
    pub(super) options: Value,
    pub(super) ending: Ending,
    /// Start of the attempt that has ended. `None` if the job did not run, or if `requeue_for_limit` gets the start.
    pub(super) attempt_start: Option<SystemTime>,
}

// A row of `expire_leases.sql`: a job whose expiry time has passed.
from_row! {
    Ended(row) { id, type_id, key, options: row.get::<_, Json<_>>("options").0, ending: Ending::Expired, attempt_start: None }
}

impl Ended {
    /// Converts the row of a job to an argument of `howdah.after_end`. `None` if the job is not coordinated.
    pub(super) fn coordinated(row: &Row, ending: Ending, attempt_start: Option<SystemTime>) -> Option<Self> {
        let Json(options) = row.get::<_, Option<Json<Value>>>("coordinated_options")?;
        let (id, type_id, key) = (row.get("id"), row.get("type_id"), row.get("key"));
        Some(Self { id, type_id, key, options, ending, attempt_start })
    }
}

impl Transaction<'_> {
    /// Applies all effects of the end of these jobs on other jobs, in the same transaction.
    pub(super) async fn after_end(&mut self, ended: &[Ended]) -> Result<Wakeups, StoreError> {
        if ended.is_empty() {
            return Ok(Wakeups::default());
        }
        let ids: Vec<i64> = ended.iter().map(|e| e.id).collect();
        let types: Vec<TypeId> = ended.iter().map(|e| e.type_id).collect();
        let keys: Vec<Option<&str>> = ended.iter().map(|e| e.key.as_deref()).collect();
        let options: Vec<Json<&Value>> = ended.iter().map(|e| Json(&e.options)).collect();
        let endings: Vec<&str> = ended.iter().map(|e| e.ending.name()).collect();
        let starts: Vec<Option<SystemTime>> = ended.iter().map(|e| e.attempt_start).collect();
        let rows = self.query(Statement::AfterEnd, &[&ids, &types, &keys, &options, &endings, &starts]).await?;
        Ok(Wakeups::from_rows(&rows))
    }
}

impl Store {
    /// Acks coordinated jobs, each with its next task type if the worker named one. The jobs must be unique and sorted
    /// by id. Returns the ids of acks that took effect, and wake-ups.
    pub async fn ack_coordinated(&self, acks: &[(Lease, &[u8], Option<TypeId>)]) -> Result<Acked, StoreError> {
        let (ids, tokens) = lease_columns(acks.iter().map(|(lease, ..)| *lease));
        let results: Vec<Option<&[u8]>> =
            acks.iter().map(|(_, result, _)| (!result.is_empty()).then_some(*result)).collect();
        let next: Vec<Option<TypeId>> = acks.iter().map(|(.., next)| *next).collect();
        let rows = self.hot().await?.query(Statement::AckCoordinated, &[&ids, &tokens, &results, &next]).await?;
        let mut acked = Acked::default();
        for row in &rows {
            if !acked.wakeups.add(row) {
                acked.ids.push(row.get("id"));
                acked.limited_types.extend(row.get::<_, Option<TypeId>>("type_id"));
            }
        }
        Ok(acked)
    }

    /// Makes waiting jobs ready whose limit key has a free slot. Processes at most `at_most` limit keys.
    pub async fn admit(&self, at_most: i32) -> Result<Wakeups, StoreError> {
        Ok(Wakeups::from_rows(&self.hot().await?.query(Statement::Admit, &[&at_most]).await?))
    }

    /// Moves scheduled coordinated jobs that are due to ready, or to waiting if their limit key has no free slot.
    pub async fn promote_coordinated(&self, at_most: i32) -> Result<Wakeups, StoreError> {
        Ok(Wakeups::from_rows(&self.hot().await?.query(Statement::PromoteCoordinated, &[&at_most]).await?))
    }

    /// Ends jobs that have not started by their expiry time.
    pub async fn expire(&self, at_most: i32) -> Result<Wakeups, StoreError> {
        Ok(Wakeups::from_rows(&self.hot().await?.query(Statement::ExpireUnstarted, &[&at_most]).await?))
    }

    /// Ends jobs that had already expired when they were claimed. The leases must be sorted by id.
    pub async fn expire_leases(&self, leases: &[Lease], owner: Option<i32>) -> Result<Wakeups, StoreError> {
        let (ids, tokens) = &lease_columns(leases.iter().copied());
        let expire = || async move {
            let mut transaction = self.begin().await?;
            let ended: Vec<Ended> = transaction.list(Statement::ExpireLeases, &[ids, tokens, &owner]).await?;
            let wakeups = transaction.after_end(&ended).await?;
            transaction.commit().await?;
            Ok(wakeups)
        };
        retry_conflicts(expire).await
    }

    /// Returns leases of coordinated jobs whose broker is lost, with the id of that broker. `keyed` adds jobs that are
    /// not coordinated, but have a key and no attempts left, so their key becomes free. Skips locked leases. Returns no
    /// leases if the calling broker's own row has expired.
    pub async fn lost_coordinated(&self, at_most: i32, by: i32, keyed: bool) -> Result<Vec<(Lease, i32)>, StoreError> {
        let rows = self.hot().await?.query(Statement::LostCoordinated, &[&at_most, &by, &keyed]).await?;
        Ok(rows.iter().map(|row| (Lease::from_row(row), row.get(2))).collect())
    }

    /// Marks jobs that a caller waits for. Returns the jobs that have not ended.
    pub async fn mark_awaited(&self, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        let mark = |store: Store| async move { store.hot().await?.list(Statement::MarkAwaited, &[&ids]).await };
        retry_while_locked_in_side_lane(self, mark).await
    }
}
