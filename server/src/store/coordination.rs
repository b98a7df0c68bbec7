//! Coordinated jobs: what the functions of the schema do with them. Something must be done when such a job ends.

use postgres_types::Json;
use serde_json::Value;
use tokio_postgres::Row;

use super::{
    Acked, Moved, Statement, Store, StoreError,
    settle::lease_columns,
    transaction::{Transaction, until_it_wins},
};
use crate::job::{Lease, TypeId};

/// What happened to a job, as far as it matters to others (`howdah.ending`).
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// It goes on: only the slot of its limit key is free.
    Moved,
    /// It goes on in its fallback: the slot and its key are free.
    Fallback,
    /// It is dead.
    Dead,
    /// It was cancelled.
    Cancelled,
    /// It had not started by its time.
    Expired,
    /// It was dead, and is given up.
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

/// What the brokers must know of what a function did.
#[derive(Clone, Debug, Default)]
pub struct Wakeups {
    /// What became ready.
    pub ready: Vec<Moved>,
    /// µs until the first scheduled job is due.
    pub due_in_us: Option<i64>,
    /// Limit keys are to be checked now.
    pub limits: bool,
    /// µs until the next limit key is to be checked.
    pub limit_in_us: Option<i64>,
}

impl Wakeups {
    /// Takes a row of `howdah.wakeup`; false: it answers for a job.
    pub(super) fn add(&mut self, row: &Row) -> bool {
        match row.get::<_, Option<&str>>("kind") {
            Some("ready") => self.ready.push(Moved {
                type_id: row.get("type_id"),
                lowest_rank: row.get("rank"),
                jobs: row.get("jobs"),
            }),
            Some("scheduled") => {
                let us: i64 = row.get("in_us");
                self.due_in_us = Some(self.due_in_us.map_or(us, |sooner| sooner.min(us)));
            }
            Some("limit_later") => self.limit_in_us = Some(row.get("in_us")),
            // "limit"; and a kind of a newer release: a check too many costs nothing.
            Some(_) => self.limits = true,
            None => return false,
        }
        true
    }

    pub(super) fn of(rows: &[Row]) -> Self {
        let mut wakeups = Self::default();
        for row in rows {
            wakeups.add(row);
        }
        wakeups
    }

    /// How many jobs became ready.
    pub fn ready_jobs(&self) -> i64 {
        self.ready.iter().map(|moved| moved.jobs).sum()
    }
}

/// A job for which `howdah.after_end` is called.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) id: i64,
    pub(super) type_id: TypeId,
    pub(super) key: Option<String>,
    pub(super) options: Value,
    pub(super) ending: Ending,
}

impl Ended {
    /// A coordinated job that has ended so; `None`: it is none.
    pub(super) fn coordinated(row: &Row, ending: Ending) -> Option<Self> {
        let Json(options) = row.get::<_, Option<Json<Value>>>("coordinated_options")?;
        Some(Self { id: row.get("id"), type_id: row.get("type_id"), key: row.get("key"), options, ending })
    }
}

impl Transaction<'_> {
    /// What follows from the end of these, as part of it.
    pub(super) async fn after_end(&mut self, ended: &[Ended]) -> Result<Wakeups, StoreError> {
        if ended.is_empty() {
            return Ok(Wakeups::default());
        }
        let ids: Vec<i64> = ended.iter().map(|e| e.id).collect();
        let types: Vec<TypeId> = ended.iter().map(|e| e.type_id).collect();
        let keys: Vec<Option<&str>> = ended.iter().map(|e| e.key.as_deref()).collect();
        let options: Vec<Json<&Value>> = ended.iter().map(|e| Json(&e.options)).collect();
        let endings: Vec<&str> = ended.iter().map(|e| e.ending.name()).collect();
        let rows = self.query(Statement::AfterEnd, &[&ids, &types, &keys, &options, &endings]).await?;
        Ok(Wakeups::of(&rows))
    }
}

impl Store {
    /// Acks of coordinated jobs, sorted by id, an id once, each with the type that it goes on to if the worker
    /// named one; the ids that took effect, and what follows.
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

    /// Grants what limit keys allow, so many keys at most.
    pub async fn admit(&self, at_most: i32) -> Result<Wakeups, StoreError> {
        Ok(Wakeups::of(&self.hot().await?.query(Statement::Admit, &[&at_most]).await?))
    }

    /// Moves coordinated jobs that are due to where they belong.
    pub async fn promote_coordinated(&self, at_most: i32) -> Result<Wakeups, StoreError> {
        Ok(Wakeups::of(&self.hot().await?.query(Statement::PromoteCoordinated, &[&at_most]).await?))
    }

    /// Ends jobs that have not started by their time.
    pub async fn expire(&self, at_most: i32) -> Result<Wakeups, StoreError> {
        Ok(Wakeups::of(&self.hot().await?.query(Statement::ExpireUnstarted, &[&at_most]).await?))
    }

    /// Ends jobs that had expired when they were claimed, sorted by id.
    pub async fn expire_leases(&self, leases: &[Lease], owner: Option<i32>) -> Result<Wakeups, StoreError> {
        until_it_wins(|| self.expire_leases_once(leases, owner)).await
    }

    async fn expire_leases_once(&self, leases: &[Lease], owner: Option<i32>) -> Result<Wakeups, StoreError> {
        let (ids, tokens) = lease_columns(leases.iter().copied());
        let mut transaction = self.begin().await?;
        let rows = transaction.query(Statement::ExpireLeases, &[&ids, &tokens, &owner]).await?;
        let ended: Vec<Ended> = rows.iter().map(ended).collect();
        let wakeups = transaction.after_end(&ended).await?;
        transaction.commit().await?;
        Ok(wakeups)
    }

    /// Leases of coordinated jobs whose brokers are gone, with the number of the broker; none, if the broker that asks counts as
    /// gone itself.
    pub async fn lost_coordinated(&self, at_most: i32, by: i32) -> Result<Vec<(Lease, i32)>, StoreError> {
        let rows = self.hot().await?.query(Statement::LostCoordinated, &[&at_most, &by]).await?;
        Ok(rows.iter().map(|row| (Lease { id: row.get(0), token: row.get(1) }, row.get(2))).collect())
    }

    /// Marks jobs that a caller waits for; those that have not ended.
    pub async fn mark_awaited(&self, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        let rows = until_it_wins(|| async { self.hot().await?.query(Statement::MarkAwaited, &[&ids]).await }).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// A row of `expire_leases.sql`.
fn ended(row: &Row) -> Ended {
    let options: Json<Value> = row.get("options");
    Ended {
        id: row.get("id"),
        type_id: row.get("type_id"),
        key: row.get("key"),
        options: options.0,
        ending: Ending::Expired,
    }
}
