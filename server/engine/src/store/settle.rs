//! Settles jobs: leased → history, scheduled, ready or dead.

use howdah_core::job::{AttemptError, AttemptGroups, Lease, TypeId};
use postgres_types::Json;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    connection::Param,
    coordination::{Ended, Ending, Wakeups},
    rows::{FromRow as _, from_row},
    transaction::{Transaction, retry_conflicts},
};

/// How to settle a job other than by ack (SQL type `howdah.settle_action`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Retry the job after a delay.
    Retry,
    /// Make the job dead.
    Dead,
    /// Run the job later. The attempt does not count.
    Snooze,
    /// Make the job ready at once. The attempt does not count.
    Release,
    /// Make the job ready at once, because its worker is lost. The attempt counts.
    Lost,
    /// Only in results: the job has no attempts left and goes to its fallback type instead of being dead.
    Fallback,
    /// Only in results: the job is cancelled instead of retried, because a newer job with its key waits.
    Superseded,
}

impl Action {
    /// Returns the name of the action in the schema and in metrics.
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

/// Maximum number of acks that the statement `SettleSmallBatch` settles. It has a lower fixed cost than the statement
/// `SettleAck`, and a higher cost per ack.
const FEW: usize = 16;

/// Acks that took effect.
#[derive(Debug, Default)]
pub struct Acked {
    pub ids: Vec<i64>,
    /// Task types of acked jobs that occupied a slot of the limit of their type. The slots are free now. May contain
    /// duplicates.
    pub limited_types: Vec<TypeId>,
    pub wakeups: Wakeups,
}

/// A settlement other than an ack.
#[derive(Clone, Debug)]
pub struct Nack {
    pub lease: Lease,
    /// How to settle the job.
    pub action: Action,
    /// Delay in ms, for retry and snooze.
    pub delay_ms: i64,
    /// Error, for retry, dead and lost.
    pub error: Option<AttemptError>,
}

/// A nack that took effect.
#[derive(Clone, Copy, Debug)]
pub struct Nacked {
    pub id: i64,
    /// Task type after the nack: the fallback type if the job has moved to it.
    pub type_id: TypeId,
    /// Task type of the attempt.
    pub left_type: TypeId,
    /// How the job was actually settled. A retry without attempts left becomes `Dead` or `Fallback`.
    pub action: Action,
    /// Delay in ms until the next attempt, if there is one.
    pub delay_ms: i64,
    /// Broker that held the lease.
    pub broker_id: Option<i32>,
    /// Rank of the job, if it is ready. `None` if its limit key holds it back.
    pub rank: Option<i64>,
    /// Whether the lease counted for the limits of its task type, including the brake.
    pub limited: bool,
}

/// Returns ids and fencing tokens as columns. The leases must be unique and sorted by id, as the statements require.
pub(super) fn lease_columns(leases: impl Iterator<Item = Lease> + Clone) -> (Vec<i64>, Vec<i64>) {
    let ids: Vec<i64> = leases.clone().map(|l| l.id).collect();
    debug_assert!(ids.is_sorted_by(|a, b| a < b), "ids must be sorted and unique: {ids:?}");
    (ids, leases.map(|l| l.token).collect())
}

/// Parts of an error that are stored only if the worker has sent them.
#[derive(Debug, Serialize)]
struct Extra<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    place: &'a str,
}

impl<'a> Extra<'a> {
    fn of(error: &'a AttemptError) -> Option<Self> {
        let AttemptError { details, place, .. } = error;
        (!details.is_empty() || !place.is_empty()).then_some(Self { details, place })
    }
}

/// Nacks as parameter columns of the statement that settles them.
struct NackColumns<'a> {
    ids: Vec<i64>,
    tokens: Vec<i64>,
    actions: Vec<&'static str>,
    delays: Vec<i64>,
    errors: Vec<Option<&'a str>>,
    /// Details and places of the errors as JSON objects; `None` if no error has any.
    extras: Option<Vec<Option<Json<Extra<'a>>>>>,
    owners: Option<&'a [i32]>,
    expired: bool,
}

impl<'a> NackColumns<'a> {
    fn new(nacks: &'a [Nack], owners: Option<&'a [i32]>, expired: bool) -> Self {
        let (ids, tokens) = lease_columns(nacks.iter().map(|n| n.lease));
        let extras: Vec<_> = nacks.iter().map(|nack| nack.error.as_ref().and_then(Extra::of).map(Json)).collect();
        Self {
            ids,
            tokens,
            actions: nacks.iter().map(|n| n.action.name()).collect(),
            delays: nacks.iter().map(|n| n.delay_ms).collect(),
            errors: nacks.iter().map(|n| n.error.as_ref().map(|error| &*error.text)).collect(),
            extras: extras.iter().any(Option::is_some).then_some(extras),
            owners,
            expired,
        }
    }

    fn params(&self, coordinated: bool, by_operator: bool) -> [Param<'_>; 10] {
        let Self { ids, tokens, actions, delays, errors, extras, owners, expired } = self;
        let is = |so: bool| if so { &true } else { &false };
        [ids, tokens, actions, delays, errors, owners, expired, is(coordinated), is(by_operator), extras]
    }
}

from_row! {
    Nacked(row) {
        id, type_id, left_type, action: Action::from_name(row.get("action")), delay_ms, broker_id, rank, limited,
    }
}

/// Returns how a nacked coordinated job ended, without its limit key, which `requeue_for_limit` handles. `None` if the job
/// is ready again: it has not ended.
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
    Some(Ended { id, type_id: row.get("left_type"), key: row.get("key"), options, ending, attempt_start: None })
}

/// Task types whose history does not keep every succeeded job. Usually only few task types have this setting.
#[derive(Clone, Debug, Default)]
pub struct ShortHistories {
    /// Task types whose history keeps no succeeded jobs.
    pub none: Vec<TypeId>,
    /// Task types whose history keeps succeeded jobs only if an attempt failed before.
    pub failures: Vec<TypeId>,
    /// Task types among `failures` whose history also keeps succeeded jobs that have a result.
    pub results: Vec<TypeId>,
}

impl ShortHistories {
    /// Returns all task types whose history does not keep every succeeded job.
    pub fn incomplete(&self) -> Vec<TypeId> {
        self.none.iter().chain(&self.failures).copied().collect()
    }
}

impl Store {
    /// Acks jobs, which must be unique and sorted by id. `short` decides which of the jobs go to history. `attempts`
    /// are the attempts of all these jobs, for statistics, or `None` if some attempts are unknown. Skips coordinated
    /// jobs, because `ack_coordinated` settles them. Returns the acks that took effect.
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
            connection.query_one(Statement::SettleSmallBatch, &params[..6]).await?
        } else {
            connection.query_one(Statement::SettleAck, &params).await?
        };
        Ok(Acked {
            ids: row.get::<_, Option<_>>("ids").unwrap_or_default(),
            limited_types: row.get::<_, Option<_>>("limited_types").unwrap_or_default(),
            wakeups: Wakeups::default(),
        })
    }

    /// Settles jobs other than by ack. The nacks must be unique and sorted by id. With `owners`, only nacks for leases
    /// of these brokers take effect; with `expired`, only nacks for leases whose deadline has passed. Adds the nacks
    /// that took effect to `nacked`. Coordinated jobs are settled in a second transaction, so `nacked` may have entries
    /// even after an error. Returns wake-ups.
    pub async fn settle_nacks(
        &self,
        nacks: &[Nack],
        owners: Option<&[i32]>,
        expired: bool,
        nacked: &mut Vec<Nacked>,
    ) -> Result<Wakeups, StoreError> {
        let columns = NackColumns::new(nacks, owners, expired);
        let rows = self.hot().await?.query(Statement::SettleNack, &columns.params(false, false)).await?;
        nacked.extend(rows.iter().map(Nacked::from_row));
        if rows.len() == nacks.len() {
            return Ok(Wakeups::default());
        }
        // The jobs that the first statement has not settled are coordinated, or their leases are lost.
        let (coordinated, wakeups) = self.settle_coordinated(&columns, None).await?;
        nacked.extend(coordinated);
        Ok(wakeups)
    }

    /// Ends leases of a broker (0: of pulled jobs) for an operator. The effects on other jobs and the audit row are in
    /// the same transaction.
    pub async fn end_leases(
        &self,
        nacks: &[Nack],
        owner: i32,
        by: &Actor,
    ) -> Result<(Vec<Nacked>, Wakeups), StoreError> {
        let owners = [owner];
        let columns = NackColumns::new(nacks, Some(&owners), false);
        retry_conflicts(|| self.settle_coordinated(&columns, Some(by))).await
    }

    /// Settles nacks of all jobs, including coordinated ones, and applies the effects on other jobs in the same
    /// transaction. If an operator ends the leases, `by` is the author of the audit row.
    async fn settle_coordinated(
        &self,
        columns: &NackColumns<'_>,
        by: Option<&Actor>,
    ) -> Result<(Vec<Nacked>, Wakeups), StoreError> {
        let mut transaction = self.begin().await?;
        let rows = transaction.query(Statement::SettleNack, &columns.params(true, by.is_some())).await?;
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
        let nacked = rows.iter().map(Nacked::from_row).map(|n| {
            if superseded.contains(&n.id) {
                Nacked { action: Action::Superseded, rank: None, ..n }
            } else {
                Nacked { rank: n.rank.filter(|_| !held.contains(&n.id)), ..n }
            }
        });
        Ok((nacked.collect(), wakeups))
    }

    /// Returns the indexes of the given leases that were settled before with the same kind of outcome.
    pub async fn settled_before(&self, outcomes: &[(Lease, i64)]) -> Result<Vec<usize>, StoreError> {
        let ids: Vec<i64> = outcomes.iter().map(|(lease, _)| lease.id).collect();
        let tokens: Vec<i64> = outcomes.iter().map(|(lease, kind)| lease.token ^ kind).collect();
        let ordinals: Vec<i64> = self.hot().await?.list(Statement::SettledBefore, &[&ids, &tokens]).await?;
        Ok(ordinals.into_iter().map(|ordinal| ordinal as usize - 1).collect())
    }
}

impl Transaction<'_> {
    /// Cancels coordinated jobs whose attempt has failed while a newer job with their key waits. Returns their ids.
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
        self.list(Statement::Supersede, &[&ids, &types, &keys, &options]).await
    }
}
