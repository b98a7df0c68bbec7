//! ready → leased, for every type that has workers with capacity, in one statement.

use std::{
    collections::HashSet,
    time::{SystemTime, UNIX_EPOCH},
};

use postgres_types::Json;
use tokio_postgres::Row;

use super::{Quota, Statement, Store, StoreError, connection::Param};
use crate::job::{JobOptions, Lease, LeasedJob, PRIORITY_STEP, Started, Tokens, TypeId, rank_base};

/// The jobs to claim of one type.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// The type.
    pub type_id: TypeId,
    /// The most jobs.
    pub jobs: i32,
    /// The rank to start from.
    pub floor: i64,
    /// The largest weight of a job.
    pub largest: i64,
}

/// A claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The types to claim, each at most once.
    pub wants: Vec<Want>,
    /// The broker that claims; `None`: a pull, whose leases last until their deadline.
    pub broker_id: Option<i32>,
    /// The most bytes; the first job is always claimed.
    pub bytes: i64,
    /// The most jobs of all types together.
    pub total: i32,
    /// How long the leases last; `None`: as long as the broker's.
    pub lease_ms: Option<i64>,
    /// Those of the types that have a limit.
    pub limited: HashSet<TypeId>,
    /// For the leases of types without a limit, as many as there can be.
    pub tokens: Tokens,
    /// For those of types with a limit. They are claimed by a statement of their own, and if its answer is lost, leases
    /// of the other one are not to be released.
    pub limited_tokens: Tokens,
}

impl ClaimRequest {
    /// A pull without a bound on bytes, with new tokens.
    pub fn new(wants: Vec<Want>, limited: HashSet<TypeId>, total: i32) -> Self {
        let tokens = |of_limited| {
            let wanted = wants.iter().filter(|want| limited.contains(&want.type_id) == of_limited);
            let jobs: usize = wanted.map(|want| want.jobs.max(0) as usize).sum();
            Tokens::draw(jobs.min(total.max(0) as usize))
        };
        let (tokens, limited_tokens) = (tokens(false), tokens(true));
        Self { wants, broker_id: None, bytes: i64::MAX, total, lease_ms: None, limited, tokens, limited_tokens }
    }
}

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The jobs, in the order of their ranks.
    pub jobs: Vec<LeasedJob>,
    /// Leases of jobs that have expired and must not run.
    pub expired: Vec<Lease>,
    /// Types whose limits held back jobs.
    pub held_back: Vec<Quota>,
    /// The part of the types with a limit may have been committed or not: its tokens.
    pub lost: Option<Tokens>,
}

impl Store {
    /// Claims jobs. Types with a limit are claimed after the others, in a transaction that locks the limits. If that
    /// fails, jobs from the first statement are still claimed.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        let mut claimed = Claimed::default();
        let (limited, free): (Vec<Want>, Vec<Want>) =
            request.wants.iter().partition(|want| request.limited.contains(&want.type_id));
        if !free.is_empty() {
            let columns = Columns::of(&free, None);
            let params = columns.params(request, &request.tokens);
            claimed.take(self.hot().await?.query(Statement::Claim, &params).await?);
        }
        if !limited.is_empty() && claimed.jobs.len() < request.total as usize {
            let result = self.claim_limited(request, &limited, &mut claimed).await;
            if claimed.jobs.is_empty() && claimed.expired.is_empty() {
                result?;
            } else if let Err(error) = result {
                // What is here is claimed all the same.
                tracing::warn!(%error, "a claim of types with a limit failed");
                claimed.lost = matches!(error, StoreError::Unknown(_)).then(|| request.limited_tokens.clone());
            }
        }
        claimed.jobs.sort_unstable_by_key(|job| (job.rank, job.lease.id));
        Ok(claimed)
    }

    async fn claim_limited(
        &self,
        request: &ClaimRequest,
        limited: &[Want],
        claimed: &mut Claimed,
    ) -> Result<(), StoreError> {
        let types: Vec<i32> = limited.iter().map(|w| w.type_id).collect();
        let wanted: Vec<i32> = limited.iter().map(|w| w.jobs).collect();
        let mut transaction = self.begin().await?;
        let quotas = transaction.quotas(&types, &wanted).await?;
        let allowed = |want: &Want| quotas.iter().find(|q| q.type_id == want.type_id).map_or(0, |q| q.allowed);
        let wants: Vec<Want> = limited
            .iter()
            .map(|want| Want { jobs: allowed(want).min(want.jobs), ..*want })
            .filter(|want| want.jobs > 0)
            .collect();
        let mut rows = Vec::new();
        if !wants.is_empty() {
            let columns = Columns::of(&wants, Some(true));
            rows = transaction.query(Statement::Claim, &columns.params(request, &request.limited_tokens)).await?;
            let taken = |type_id| rows.iter().filter(|row| row.get::<_, TypeId>(2) == type_id).count() as i32;
            let spent: Vec<i32> = types.iter().map(|id| taken(*id)).collect();
            transaction.spend(&types, &spent).await?;
        }
        transaction.commit().await?;
        claimed.take(rows);
        let short = |quota: &Quota| limited.iter().any(|w| w.type_id == quota.type_id && w.jobs > quota.allowed);
        claimed.held_back = quotas.into_iter().filter(short).collect();
        Ok(())
    }

    /// The leases of a claim whose answer was lost: those that have one of its tokens.
    pub async fn lost_claim(&self, broker_id: i32, tokens: &Tokens) -> Result<Vec<Lease>, StoreError> {
        let rows = self.hot().await?.query(Statement::LostClaim, &[&broker_id, tokens.as_vec()]).await?;
        Ok(rows.iter().map(|row| Lease { id: row.get(0), token: row.get(1) }).collect())
    }
}

impl Claimed {
    fn take(&mut self, rows: Vec<Row>) {
        for row in rows {
            if row.get::<_, Option<bool>>("expired") == Some(true) {
                self.expired.push(Lease { id: row.get(0), token: row.get(1) });
            } else {
                self.jobs.push(leased_job(&row));
            }
        }
    }
}

/// The claim as parameters.
struct Columns {
    types: Vec<i32>,
    jobs: Vec<i32>,
    floors: Vec<i64>,
    largest: Vec<i64>,
    limited: Option<bool>,
}

impl Columns {
    fn of(wants: &[Want], limited: Option<bool>) -> Self {
        Self {
            types: wants.iter().map(|w| w.type_id).collect(),
            jobs: wants.iter().map(|w| w.jobs).collect(),
            floors: wants.iter().map(|w| w.floor).collect(),
            largest: wants.iter().map(|w| w.largest).collect(),
            limited,
        }
    }

    fn params<'a>(&'a self, request: &'a ClaimRequest, tokens: &'a Tokens) -> [Param<'a>; 10] {
        [
            &self.types,
            &self.jobs,
            &self.floors,
            &self.largest,
            &request.broker_id,
            &request.bytes,
            tokens.as_vec(),
            &request.lease_ms,
            &request.total,
            &self.limited,
        ]
    }
}

/// Columns by position: this runs once for each job.
fn leased_job(row: &Row) -> LeasedJob {
    // Anybody with SQL access may have written anything: such headers are dropped, but not the job.
    let headers: Option<Json<_>> = row.try_get(8).unwrap_or_default();
    let options: Option<Json<_>> = row.try_get(9).unwrap_or_default();
    let payload: &[u8] = row.get(10);
    let options = options.map(|Json(o): Json<Box<JobOptions>>| o);
    let rank: i64 = row.get(3);
    // The step may be wrong for the same reason; that only makes this metric wrong.
    let step_us = options.as_ref().and_then(|o| o.priority_step_us).unwrap_or(PRIORITY_STEP);
    let ready_us = rank.wrapping_sub(rank_base(row.get(14), step_us.clamp(0, PRIORITY_STEP)));
    let (type_id, now_us, created): (TypeId, i64, SystemTime) = (row.get(2), row.get(12), row.get(6));
    let created_us = created.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
    // As `howdah.waited_us`: with a fair key its rank may be older than the job.
    let waited_us = now_us.saturating_sub(ready_us.max(created_us)).max(0);
    LeasedJob {
        lease: Lease { id: row.get(0), token: row.get(1) },
        type_id,
        rank,
        attempt: row.get(4),
        max_attempts: row.get(5),
        created,
        deadline: row.get(7),
        headers: headers.map(|Json(h)| h).unwrap_or_default(),
        options,
        payload: payload.to_vec().into(),
        deadline_in_ms: row.get(11),
        waited_us: now_us.saturating_sub(ready_us),
        started: Started { type_id, at_us: now_us, waited_us },
        weight: row.get::<_, i32>(13) as u64,
    }
}
