//! leased → history, scheduled, ready or dead.

use super::{Statement, Store, StoreError};
use crate::job::{Lease, TypeId};

/// What to do with a lease that is not acked; the numbers are those of `settle_nack.sql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Try again after the delay.
    Retry = 1,
    /// Failed for good.
    Dead = 2,
    /// Later, attempt given back.
    Snooze = 3,
    /// At once, attempt given back.
    Release = 4,
    /// The worker is lost: at once, attempt counted.
    Lost = 5,
    /// Done, never asked for: what would be dead goes to its fallback.
    Fallback = 6,
}

impl Action {
    fn from_number(number: i16) -> Self {
        match number {
            2 => Self::Dead,
            3 => Self::Snooze,
            4 => Self::Release,
            5 => Self::Lost,
            6 => Self::Fallback,
            _ => Self::Retry,
        }
    }
}

/// A settlement that is not an ack.
#[derive(Clone, Debug)]
pub struct Nack {
    /// Whose.
    pub lease: Lease,
    /// What.
    pub action: Action,
    /// For retry and snooze.
    pub delay_ms: i64,
    /// For retry, dead and lost.
    pub error: Option<String>,
}

/// What took effect.
#[derive(Clone, Copy, Debug)]
pub struct Nacked {
    /// The job.
    pub id: i64,
    /// Its type, as it is now.
    pub type_id: TypeId,
    /// What was done: a retry without attempts left is dead, or goes to its fallback.
    pub action: Action,
    /// How long it is put off, if it is.
    pub delay_ms: i64,
    /// Whose lease it was.
    pub broker_id: Option<i32>,
    /// Its rank, if it is ready again.
    pub rank: Option<i64>,
}

/// The two columns by which every settle compares; sorted and unique, as the statements need.
pub(super) fn lease_columns(leases: impl Iterator<Item = Lease> + Clone) -> (Vec<i64>, Vec<i64>) {
    let ids: Vec<i64> = leases.clone().map(|l| l.id).collect();
    debug_assert!(ids.is_sorted_by(|a, b| a < b), "ids must be sorted and unique: {ids:?}");
    (ids, leases.map(|l| l.token).collect())
}

impl Store {
    /// Acks, sorted by id, an id once; jobs of the types `none` do not go to history, and of the types
    /// `failures` only those that failed before. Returns the ids that took effect.
    pub async fn settle_acks(
        &self,
        acks: &[(Lease, &[u8])],
        (none, failures): &(Vec<TypeId>, Vec<TypeId>),
    ) -> Result<Vec<i64>, StoreError> {
        let (ids, tokens) = lease_columns(acks.iter().map(|(lease, _)| *lease));
        let results: Option<Vec<Option<&[u8]>>> = acks
            .iter()
            .any(|(_, result)| !result.is_empty())
            .then(|| acks.iter().map(|(_, result)| (!result.is_empty()).then_some(*result)).collect());
        let mut connection = self.hot().await?;
        let row = connection.query_one(Statement::SettleAck, &[&ids, &tokens, &results, none, failures]).await?;
        Ok(row.get::<_, Option<Vec<i64>>>("ids").unwrap_or_default())
    }

    /// Everything else, sorted by id, an id once. With an owner, only its leases; `expired`, only those
    /// whose deadline has passed. Returns what took effect.
    pub async fn settle_nacks(
        &self,
        nacks: &[Nack],
        owner: Option<i32>,
        expired: bool,
    ) -> Result<Vec<Nacked>, StoreError> {
        let (ids, tokens) = lease_columns(nacks.iter().map(|n| n.lease));
        let actions: Vec<i16> = nacks.iter().map(|n| n.action as i16).collect();
        let delays: Vec<i64> = nacks.iter().map(|n| n.delay_ms).collect();
        let errors: Vec<Option<&str>> = nacks.iter().map(|n| n.error.as_deref()).collect();
        let mut connection = self.hot().await?;
        let rows = connection
            .query(Statement::SettleNack, &[&ids, &tokens, &actions, &delays, &errors, &owner, &expired])
            .await?;
        Ok(rows
            .iter()
            .map(|row| Nacked {
                id: row.get("id"),
                type_id: row.get("type_id"),
                action: Action::from_number(row.get("action")),
                delay_ms: row.get("delay_ms"),
                broker_id: row.get("broker_id"),
                rank: row.get("rank"),
            })
            .collect())
    }

    /// Which of these pairs were settled before, with the same token.
    pub async fn settled_before(&self, leases: &[Lease]) -> Result<Vec<Lease>, StoreError> {
        let ids: Vec<i64> = leases.iter().map(|l| l.id).collect();
        let tokens: Vec<i64> = leases.iter().map(|l| l.token).collect();
        let mut connection = self.hot().await?;
        let rows = connection.query(Statement::SettledBefore, &[&ids, &tokens]).await?;
        Ok(rows.iter().map(|row| Lease { id: row.get(0), token: row.get(1) }).collect())
    }
}
