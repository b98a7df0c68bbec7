//! Jobs that ask for more than a place in the order: what the functions of the schema do with them.

use postgres_types::Json;
use serde_json::Value;
use tokio_postgres::Row;

use super::{
    Acked, Moved, Statement, Store, StoreError,
    settle::lease_columns,
    transaction::{Transaction, until_it_wins},
};
use crate::job::{Lease, TypeId};

/// Numbers of `howdah.after_end` that are no state of a finished job.
pub(super) const LEFT: i16 = 3;
pub(super) const LEFT_WITHOUT_KEY: i16 = 4;
pub(super) const DEAD: i16 = 5;
pub(super) const CANCELLED: i16 = 7;
pub(super) const DISCARDED: i16 = 9;

/// What the brokers must know of what a function did.
#[derive(Clone, Debug, Default)]
pub struct Woken {
    /// What became ready.
    pub ready: Vec<Moved>,
    /// µs until the first of what is scheduled is due.
    pub due_in_us: Option<i64>,
    /// Limit keys are to be looked at now.
    pub gates: bool,
    /// µs until the next limit key is to be looked at.
    pub gate_in_us: Option<i64>,
}

impl Woken {
    /// Takes a row of `howdah.woken`; false: it is something else.
    pub(super) fn add(&mut self, row: &Row) -> bool {
        match row.get::<_, i16>("kind") {
            1 => self.ready.push(Moved {
                type_id: row.get("type_id"),
                lowest_rank: row.get("rank"),
                jobs: row.get("jobs"),
            }),
            2 => {
                let us: i64 = row.get("rank");
                self.due_in_us = Some(self.due_in_us.map_or(us, |sooner| sooner.min(us)));
            }
            3 => self.gates = true,
            4 => self.gate_in_us = Some(row.get("rank")),
            _ => return false,
        }
        true
    }

    pub(super) fn of(rows: &[Row]) -> Self {
        let mut woken = Self::default();
        for row in rows {
            woken.add(row);
        }
        woken
    }

    /// How many jobs became ready.
    pub fn ready_jobs(&self) -> i64 {
        self.ready.iter().map(|moved| moved.jobs).sum()
    }
}

/// A job that has ended, or has left the place that a limit counts (`howdah.after_end`).
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) id: i64,
    pub(super) type_id: TypeId,
    pub(super) key: Option<String>,
    pub(super) options: Value,
    pub(super) state: i16,
}

impl Ended {
    /// A special job that has ended so; `None`: it is none.
    pub(super) fn special(row: &Row, state: i16) -> Option<Self> {
        let Json(options) = row.get::<_, Option<Json<Value>>>("special_options")?;
        Some(Self { id: row.get("id"), type_id: row.get("type_id"), key: row.get("key"), options, state })
    }
}

impl Transaction<'_> {
    /// What follows from the end of these, as part of it.
    pub(super) async fn after_end(&mut self, ended: &[Ended]) -> Result<Woken, StoreError> {
        if ended.is_empty() {
            return Ok(Woken::default());
        }
        let ids: Vec<i64> = ended.iter().map(|e| e.id).collect();
        let types: Vec<TypeId> = ended.iter().map(|e| e.type_id).collect();
        let keys: Vec<Option<&str>> = ended.iter().map(|e| e.key.as_deref()).collect();
        let options: Vec<Json<&Value>> = ended.iter().map(|e| Json(&e.options)).collect();
        let states: Vec<i16> = ended.iter().map(|e| e.state).collect();
        let rows = self.query(Statement::AfterEnd, &[&ids, &types, &keys, &options, &states]).await?;
        Ok(Woken::of(&rows))
    }
}

impl Store {
    /// Acks of special jobs, sorted by id, an id once, each with the type that it goes on to if the worker
    /// named one; the ids that took effect, and what follows.
    pub async fn ack_special(&self, acks: &[(Lease, &[u8], Option<TypeId>)]) -> Result<Acked, StoreError> {
        let (ids, tokens) = lease_columns(acks.iter().map(|(lease, ..)| *lease));
        let results: Vec<Option<&[u8]>> =
            acks.iter().map(|(_, result, _)| (!result.is_empty()).then_some(*result)).collect();
        let next: Vec<Option<TypeId>> = acks.iter().map(|(.., next)| *next).collect();
        let rows = self.hot().await?.query(Statement::AckSpecial, &[&ids, &tokens, &results, &next]).await?;
        let mut acked = Acked::default();
        for row in &rows {
            if !acked.woken.add(row) {
                acked.ids.push(row.get("id"));
                acked.limited_types.extend(row.get::<_, Option<TypeId>>("type_id"));
            }
        }
        Ok(acked)
    }

    /// Grants what limit keys allow, so many keys at most.
    pub async fn admit(&self, at_most: i32) -> Result<Woken, StoreError> {
        Ok(Woken::of(&self.hot().await?.query(Statement::Admit, &[&at_most]).await?))
    }

    /// Moves special jobs that are due to where they belong.
    pub async fn promote_special(&self, at_most: i32) -> Result<Woken, StoreError> {
        Ok(Woken::of(&self.hot().await?.query(Statement::PromoteSpecial, &[&at_most]).await?))
    }

    /// Ends jobs that have not begun by their time.
    pub async fn expire(&self, at_most: i32) -> Result<Woken, StoreError> {
        Ok(Woken::of(&self.hot().await?.query(Statement::Expire, &[&at_most]).await?))
    }

    /// Ends jobs that had expired when they were claimed, sorted by id.
    pub async fn expire_leases(&self, leases: &[Lease], owner: Option<i32>) -> Result<Woken, StoreError> {
        until_it_wins(|| self.expire_leases_once(leases, owner)).await
    }

    async fn expire_leases_once(&self, leases: &[Lease], owner: Option<i32>) -> Result<Woken, StoreError> {
        let (ids, tokens) = lease_columns(leases.iter().copied());
        let mut transaction = self.begin().await?;
        let rows = transaction.query(Statement::ExpireLeases, &[&ids, &tokens, &owner]).await?;
        let ended: Vec<Ended> = rows.iter().map(ended).collect();
        let woken = transaction.after_end(&ended).await?;
        transaction.commit().await?;
        Ok(woken)
    }

    /// Leases of special jobs whose brokers are gone, with the number of the broker; none, if the broker that asks counts as
    /// gone itself.
    pub async fn lost_special(&self, at_most: i32, by: i32) -> Result<Vec<(Lease, i32)>, StoreError> {
        let rows = self.hot().await?.query(Statement::LostSpecial, &[&at_most, &by]).await?;
        Ok(rows.iter().map(|row| (Lease { id: row.get(0), token: row.get(1) }, row.get(2))).collect())
    }

    /// Says that somebody waits for the end of these; those that have not ended.
    pub async fn mark_waited(&self, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        let rows = until_it_wins(|| async { self.hot().await?.query(Statement::MarkWaited, &[&ids]).await }).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

fn ended(row: &Row) -> Ended {
    let options: Json<Value> = row.get("options");
    Ended {
        id: row.get("id"),
        type_id: row.get("type_id"),
        key: row.get("key"),
        options: options.0,
        state: row.get("state"),
    }
}
