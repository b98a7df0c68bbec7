//! leased → history, scheduled, ready or dead.

use postgres_types::Json;
use tokio_postgres::Row;

use super::{
    Statement, Store, StoreError,
    connection::Param,
    special::{DEAD, Ended, LEFT, LEFT_WITHOUT_KEY, Woken},
};
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

/// Acks that took effect.
#[derive(Debug, Default)]
pub struct Acked {
    /// The jobs.
    pub ids: Vec<i64>,
    /// The types of those whose type had a limit, each once or more often.
    pub limited_types: Vec<TypeId>,
    /// What follows.
    pub woken: Woken,
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
    /// Its rank, if it is ready again; one that its limit key holds back is not.
    pub rank: Option<i64>,
}

/// The two columns by which every settle compares; sorted and unique, as the statements need.
pub(super) fn lease_columns(leases: impl Iterator<Item = Lease> + Clone) -> (Vec<i64>, Vec<i64>) {
    let ids: Vec<i64> = leases.clone().map(|l| l.id).collect();
    debug_assert!(ids.is_sorted_by(|a, b| a < b), "ids must be sorted and unique: {ids:?}");
    (ids, leases.map(|l| l.token).collect())
}

fn nacked(row: &Row) -> Nacked {
    Nacked {
        id: row.get("id"),
        type_id: row.get("type_id"),
        action: Action::from_number(row.get("action")),
        delay_ms: row.get("delay_ms"),
        broker_id: row.get("broker_id"),
        rank: row.get("rank"),
    }
}

/// What must follow for a special job: of one that is ready again, nothing. Its limit key is for `hold_back`.
fn ended(row: &Row) -> Option<Ended> {
    let Json(mut options) = row.get::<_, Option<Json<serde_json::Value>>>("special_options")?;
    if let Some(options) = options.as_object_mut() {
        options.remove("limit_key");
    }
    let state = match Action::from_number(row.get("action")) {
        Action::Dead => DEAD,
        Action::Fallback => LEFT_WITHOUT_KEY,
        _ if row.get::<_, Option<i64>>("rank").is_none() => LEFT,
        _ => return None,
    };
    Some(Ended { id: row.get("id"), type_id: row.get("left_type"), key: row.get("key"), options, state })
}

/// Types of which history keeps not every succeeded job; mostly there are none.
#[derive(Clone, Debug, Default)]
pub struct ShortHistories {
    /// It keeps none.
    pub none: Vec<TypeId>,
    /// It keeps those that failed before.
    pub failures: Vec<TypeId>,
    /// Of those, also the ones with a result.
    pub results: Vec<TypeId>,
}

impl Store {
    /// Acks, sorted by id, an id once; which of them go to history, `short` says. Returns those that took effect;
    /// special jobs do not.
    pub async fn settle_acks(&self, acks: &[(Lease, &[u8])], short: &ShortHistories) -> Result<Acked, StoreError> {
        let (ids, tokens) = lease_columns(acks.iter().map(|(lease, _)| *lease));
        let results: Option<Vec<Option<&[u8]>>> = acks
            .iter()
            .any(|(_, result)| !result.is_empty())
            .then(|| acks.iter().map(|(_, result)| (!result.is_empty()).then_some(*result)).collect());
        let mut connection = self.hot().await?;
        let row = connection
            .query_one(Statement::SettleAck, &[&ids, &tokens, &results, &short.none, &short.failures, &short.results])
            .await?;
        Ok(Acked {
            ids: row.get::<_, Option<_>>("ids").unwrap_or_default(),
            limited_types: row.get::<_, Option<_>>("limited_types").unwrap_or_default(),
            woken: Woken::default(),
        })
    }

    /// Everything else, sorted by id, an id once. With an owner, only its leases; `expired`, only those
    /// whose deadline has passed. Adds what took effect, also if it fails then: special jobs are a transaction of
    /// their own. Returns what follows for them.
    pub async fn settle_nacks(
        &self,
        nacks: &[Nack],
        owner: Option<i32>,
        expired: bool,
        nacked: &mut Vec<Nacked>,
    ) -> Result<Woken, StoreError> {
        let (ids, tokens) = lease_columns(nacks.iter().map(|n| n.lease));
        let actions: Vec<i16> = nacks.iter().map(|n| n.action as i16).collect();
        let delays: Vec<i64> = nacks.iter().map(|n| n.delay_ms).collect();
        let errors: Vec<Option<&str>> = nacks.iter().map(|n| n.error.as_deref()).collect();
        let params = |special: &'static bool| -> [Param<'_>; 8] {
            [&ids, &tokens, &actions, &delays, &errors, &owner, &expired, special]
        };
        let rows = self.hot().await?.query(Statement::SettleNack, &params(&false)).await?;
        nacked.extend(rows.iter().map(self::nacked));
        if rows.len() == nacks.len() {
            return Ok(Woken::default());
        }
        // What is left is special, or lost.
        let mut transaction = self.begin().await?;
        let rows = transaction.query(Statement::SettleNack, &params(&true)).await?;
        let ended: Vec<Ended> = rows.iter().filter_map(ended).collect();
        let mut woken = transaction.after_end(&ended).await?;
        let (held, gates) = transaction.hold_back(&rows).await?;
        transaction.commit().await?;
        woken.gates |= gates;
        nacked.extend(
            rows.iter().map(self::nacked).map(|n| Nacked { rank: n.rank.filter(|_| !held.contains(&n.id)), ..n }),
        );
        Ok(woken)
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
