//! leased → history, scheduled, ready or dead.

use postgres_types::Json;
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    connection::Param,
    coordination::{Ended, Ending, Wakeups},
    transaction::{Transaction, until_it_wins},
};
use crate::job::{AttemptGroups, Lease, TypeId};

/// What to do with a job that is not acked (`howdah.settle_action`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Try again after the delay.
    Retry,
    /// The job is dead.
    Dead,
    /// Run it later; the attempt does not count.
    Snooze,
    /// Make it ready at once; the attempt does not count.
    Release,
    /// The worker is lost: make it ready at once; the attempt counts.
    Lost,
    /// Only in answers: a job that would be dead goes to its fallback.
    Fallback,
    /// Only in answers: a job that would be retried is cancelled, since a newer one with its key waits.
    Superseded,
}

impl Action {
    /// As the schema and the metrics call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Dead => "dead",
            Self::Snooze => "snooze",
            Self::Release => "release",
            Self::Lost => "lost",
            Self::Fallback => "fallback",
            Self::Superseded => "superseded",
        }
    }

    fn from_name(name: &str) -> Self {
        let all = [Self::Dead, Self::Snooze, Self::Release, Self::Lost, Self::Fallback];
        all.into_iter().find(|action| action.name() == name).unwrap_or(Self::Retry)
    }
}

/// So many acks are a few: there is a statement for them that begins sooner, and takes longer for each.
const FEW: usize = 16;

/// Acks that took effect.
#[derive(Debug, Default)]
pub struct Acked {
    /// The jobs.
    pub ids: Vec<i64>,
    /// Types with a limit among the jobs' types, each once or more often.
    pub limited_types: Vec<TypeId>,
    /// The wakeups.
    pub wakeups: Wakeups,
}

/// A settlement that is not an ack.
#[derive(Clone, Debug)]
pub struct Nack {
    /// The lease.
    pub lease: Lease,
    /// The action.
    pub action: Action,
    /// The delay, for retry and snooze.
    pub delay_ms: i64,
    /// The error, for retry, dead and lost.
    pub error: Option<String>,
}

/// A nack that took effect.
#[derive(Clone, Copy, Debug)]
pub struct Nacked {
    /// The job.
    pub id: i64,
    /// Its current type.
    pub type_id: TypeId,
    /// The action: a retry without attempts left is dead, or goes to its fallback.
    pub action: Action,
    /// The delay until its next attempt, if there is one.
    pub delay_ms: i64,
    /// The broker that held the lease.
    pub broker_id: Option<i32>,
    /// Its rank, if it is ready. It is not ready if its limit key holds it back.
    pub rank: Option<i64>,
}

/// The two columns that every settle compares; sorted and unique, as the statements need.
pub(super) fn lease_columns(leases: impl Iterator<Item = Lease> + Clone) -> (Vec<i64>, Vec<i64>) {
    let ids: Vec<i64> = leases.clone().map(|l| l.id).collect();
    debug_assert!(ids.is_sorted_by(|a, b| a < b), "ids must be sorted and unique: {ids:?}");
    (ids, leases.map(|l| l.token).collect())
}

/// Nacks as columns of their statement.
struct NackColumns<'a> {
    ids: Vec<i64>,
    tokens: Vec<i64>,
    actions: Vec<&'static str>,
    delays: Vec<i64>,
    errors: Vec<Option<&'a str>>,
    owners: Option<&'a [i32]>,
    expired: bool,
}

impl<'a> NackColumns<'a> {
    fn new(nacks: &'a [Nack], owners: Option<&'a [i32]>, expired: bool) -> Self {
        let (ids, tokens) = lease_columns(nacks.iter().map(|n| n.lease));
        Self {
            ids,
            tokens,
            actions: nacks.iter().map(|n| n.action.name()).collect(),
            delays: nacks.iter().map(|n| n.delay_ms).collect(),
            errors: nacks.iter().map(|n| n.error.as_deref()).collect(),
            owners,
            expired,
        }
    }

    fn params(&self, coordinated: bool) -> [Param<'_>; 8] {
        let Self { ids, tokens, actions, delays, errors, owners, expired } = self;
        [ids, tokens, actions, delays, errors, owners, expired, if coordinated { &true } else { &false }]
    }
}

fn nacked(row: &Row) -> Nacked {
    Nacked {
        id: row.get("id"),
        type_id: row.get("type_id"),
        action: Action::from_name(row.get("action")),
        delay_ms: row.get("delay_ms"),
        broker_id: row.get("broker_id"),
        rank: row.get("rank"),
    }
}

/// The ending of a coordinated job; none if the job is ready again: `requeue_for_limit` handles its limit key.
fn ended(row: &Row, superseded: &[i64]) -> Option<Ended> {
    let id: i64 = row.get("id");
    let Json(mut options) = row.get::<_, Option<Json<serde_json::Value>>>("coordinated_options")?;
    if let Some(options) = options.as_object_mut() {
        options.remove("limit_key");
    }
    let ending = match Action::from_name(row.get("action")) {
        Action::Dead => Ending::Dead,
        Action::Fallback => Ending::Fallback,
        _ if superseded.contains(&id) => Ending::Cancelled,
        _ if row.get::<_, Option<i64>>("rank").is_none() => Ending::Moved,
        _ => return None,
    };
    Some(Ended { id, type_id: row.get("left_type"), key: row.get("key"), options, ending })
}

/// Types whose history does not keep every succeeded job; there are few.
#[derive(Clone, Debug, Default)]
pub struct ShortHistories {
    /// Types that keep no succeeded jobs.
    pub none: Vec<TypeId>,
    /// Types that keep those with a failed attempt.
    pub failures: Vec<TypeId>,
    /// Types that also keep those with a result.
    pub results: Vec<TypeId>,
}

impl ShortHistories {
    /// Types that do not keep every succeeded job.
    pub fn forgetful(&self) -> Vec<TypeId> {
        self.none.iter().chain(&self.failures).copied().collect()
    }
}

impl Store {
    /// Acks jobs, sorted by id, an id once; `short` decides which of them go to history. Returns those that took
    /// effect; coordinated jobs do not. `attempts` are all of these, for statistics; `None`: not all of them are known.
    pub async fn settle_acks(
        &self,
        acks: &[(Lease, &[u8])],
        short: &ShortHistories,
        attempts: Option<&AttemptGroups>,
    ) -> Result<Acked, StoreError> {
        let (ids, tokens) = lease_columns(acks.iter().map(|(lease, _)| *lease));
        let results: Option<Vec<Option<&[u8]>>> = acks
            .iter()
            .any(|(_, result)| !result.is_empty())
            .then(|| acks.iter().map(|(_, result)| (!result.is_empty()).then_some(*result)).collect());
        let mut connection = self.hot().await?;
        let params: [Param<'_>; 11] = [
            &ids,
            &tokens,
            &results,
            &short.none,
            &short.failures,
            &short.results,
            &attempts.map(|groups| &groups.type_ids),
            &attempts.map(|groups| &groups.starts_us),
            &attempts.map(|groups| &groups.wait_buckets),
            &attempts.map(|groups| &groups.attempts),
            &attempts.map(|groups| &groups.waits_us),
        ];
        let row = if acks.len() <= FEW {
            connection.query_one(Statement::SettleFew, &params[..6]).await?
        } else {
            connection.query_one(Statement::SettleAck, &params).await?
        };
        Ok(Acked {
            ids: row.get::<_, Option<_>>("ids").unwrap_or_default(),
            limited_types: row.get::<_, Option<_>>("limited_types").unwrap_or_default(),
            wakeups: Wakeups::default(),
        })
    }

    /// All other outcomes, sorted by id, an id once. With owners, only their leases; with `expired`, only those whose
    /// deadline has passed. Adds those that took effect to `done`, also if it fails afterwards: coordinated jobs have a
    /// transaction of their own. Returns the wakeups for them.
    pub async fn settle_nacks(
        &self,
        nacks: &[Nack],
        owners: Option<&[i32]>,
        expired: bool,
        nacked: &mut Vec<Nacked>,
    ) -> Result<Wakeups, StoreError> {
        let columns = NackColumns::new(nacks, owners, expired);
        let rows = self.hot().await?.query(Statement::SettleNack, &columns.params(false)).await?;
        nacked.extend(rows.iter().map(self::nacked));
        if rows.len() == nacks.len() {
            return Ok(Wakeups::default());
        }
        // The rest is coordinated, or lost.
        let (coordinated, wakeups) = self.settle_together(&columns, None).await?;
        nacked.extend(coordinated);
        Ok(wakeups)
    }

    /// Ends leases of a broker (0: of none) for an operator, with what follows and the row of the audit in one transaction.
    pub async fn end_leases(
        &self,
        nacks: &[Nack],
        owner: i32,
        by: &Actor,
    ) -> Result<(Vec<Nacked>, Wakeups), StoreError> {
        let owners = [owner];
        let columns = NackColumns::new(nacks, Some(&owners), false);
        until_it_wins(|| self.settle_together(&columns, Some(by))).await
    }

    /// Nacks in one transaction with what follows for coordinated jobs.
    async fn settle_together(
        &self,
        columns: &NackColumns<'_>,
        by: Option<&Actor>,
    ) -> Result<(Vec<Nacked>, Wakeups), StoreError> {
        let mut transaction = self.begin().await?;
        let rows = transaction.query(Statement::SettleNack, &columns.params(true)).await?;
        let superseded = transaction.supersede(&rows).await?;
        let ended: Vec<Ended> = rows.iter().filter_map(|row| ended(row, &superseded)).collect();
        let mut wakeups = transaction.after_end(&ended).await?;
        let (held, limits) = transaction.requeue_for_limit(&rows).await?;
        if let Some(by) = by {
            let jobs = rows.iter().map(|row| (row.get("id"), row.get("left_type")));
            transaction.record(by, &Change::of_jobs(jobs)).await?;
        }
        transaction.commit().await?;
        wakeups.limits |= limits;
        let nacked = rows.iter().map(self::nacked).map(|n| {
            if superseded.contains(&n.id) {
                Nacked { action: Action::Superseded, rank: None, ..n }
            } else {
                Nacked { rank: n.rank.filter(|_| !held.contains(&n.id)), ..n }
            }
        });
        Ok((nacked.collect(), wakeups))
    }

    /// Which of these leases were settled before with the same kind of outcome: their indexes.
    pub async fn settled_before(&self, outcomes: &[(Lease, i64)]) -> Result<Vec<usize>, StoreError> {
        let ids: Vec<i64> = outcomes.iter().map(|(lease, _)| lease.id).collect();
        let tokens: Vec<i64> = outcomes.iter().map(|(lease, kind)| lease.token ^ kind).collect();
        let mut connection = self.hot().await?;
        let rows = connection.query(Statement::SettledBefore, &[&ids, &tokens]).await?;
        Ok(rows.iter().map(|row| row.get::<_, i64>(0) as usize - 1).collect())
    }
}

impl Transaction<'_> {
    /// Of these coordinated jobs, cancels those whose attempt has failed while a newer job with their key waits.
    async fn supersede(&mut self, rows: &[Row]) -> Result<Vec<i64>, StoreError> {
        let (mut ids, mut types, mut keys, mut options) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let retried = matches!(Action::from_name(row.get("action")), Action::Retry | Action::Lost);
            if let (true, Some(key)) = (retried, row.get::<_, Option<&str>>("key")) {
                ids.push(row.get::<_, i64>("id"));
                types.push(row.get::<_, TypeId>("left_type"));
                keys.push(key);
                options.push(row.get::<_, Option<Json<serde_json::Value>>>("coordinated_options"));
            }
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.query(Statement::Supersede, &[&ids, &types, &keys, &options]).await?;
        Ok(rows.iter().map(|row| row.get("id")).collect())
    }
}
