//! Claims jobs (ready → leased) for all task types whose workers have capacity, in one statement.

use std::{
    collections::HashSet,
    time::{SystemTime, UNIX_EPOCH},
};

use howdah_core::job::{JobOptions, Lease, LeasedJob, PRIORITY_STEP, Started, Tokens, TypeId, rank_base};
use postgres_types::Json;
use tokio_postgres::Row;

use super::{Quota, Statement, Store, StoreError, connection::Param};

/// The jobs to claim of one task type.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub type_id: TypeId,
    /// Maximum number of jobs to claim.
    pub jobs: i32,
    /// Lowest rank to scan. Jobs of lower ranks were claimed before, and their dead index entries would slow down the
    /// scan.
    pub floor: i64,
    /// Maximum size of a job to claim, in bytes of payload and headers.
    pub largest: i64,
}

#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Types to claim, each at most once.
    pub wants: Vec<Want>,
    /// Id of the broker that claims. `None` for a pull: its leases belong to no broker and last until their deadline.
    pub broker_id: Option<i32>,
    /// Maximum size of all claimed jobs together, in bytes. The first job is claimed even if it is larger.
    pub bytes: i64,
    /// Maximum number of jobs of all types together.
    pub total: i32,
    /// Duration of the leases in ms. `None`: the leases last while their broker lives.
    pub lease_ms: Option<i64>,
    /// Wanted types with a limit on running jobs or on the rate of starts.
    pub limited: HashSet<TypeId>,
    /// Fencing tokens for leases of types without a limit, one for each possible lease.
    pub tokens: Tokens,
    /// Fencing tokens for leases of types with a limit, which a separate statement claims. If that statement's answer
    /// is lost, only leases with these tokens may be released.
    pub limited_tokens: Tokens,
}

impl ClaimRequest {
    /// Creates the parameters of a pull: no broker, no limit on bytes, new fencing tokens. Other callers then set
    /// further fields.
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

/// Result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// Claimed jobs, ordered by rank.
    pub jobs: Vec<LeasedJob>,
    /// Leases of claimed jobs whose expiry time has passed. The caller ends them without delivering the jobs.
    pub expired: Vec<Lease>,
    /// Types of which fewer jobs than wanted were claimed because of their limits.
    pub held_back: Vec<Quota>,
    /// Fencing tokens of the claim of types with a limit, if it is unknown whether that claim was committed.
    pub lost: Option<Tokens>,
}

impl Store {
    /// Claims jobs. Types with a limit are claimed after the others, in a transaction that locks the limits. If that
    /// transaction fails, the result still has the jobs of the first statement.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        let mut claimed = Claimed::default();
        let (limited, free): (Vec<Want>, Vec<Want>) =
            request.wants.iter().partition(|want| request.limited.contains(&want.type_id));
        if !free.is_empty() {
            let columns = Columns::new(&free, None);
            let params = columns.params(request, &request.tokens);
            claimed.take(self.hot().await?.query(Statement::Claim, &params).await?);
        }
        if !limited.is_empty() && claimed.jobs.len() < request.total as usize {
            let result = self.claim_limited(request, &limited, &mut claimed).await;
            if claimed.jobs.is_empty() && claimed.expired.is_empty() {
                result?;
            } else if let Err(error) = result {
                // The first statement has already claimed jobs, so its result is returned in spite of the error of the
                // second statement.
                tracing::warn!(%error, "claiming jobs of task types with a concurrency or rate limit failed");
                claimed.lost = matches!(error, StoreError::Unknown(_)).then(|| request.limited_tokens.clone());
            }
        }
        claimed.jobs.sort_unstable_by_key(|job| (job.rank, job.lease.id));
        self.add_dependencies(&mut claimed.jobs, request).await;
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
            let columns = Columns::new(&wants, Some(true));
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

    /// Finds the leases of a claim whose answer was lost, by the fencing tokens of that claim.
    pub async fn lost_claim(&self, broker_id: i32, tokens: &Tokens) -> Result<Vec<Lease>, StoreError> {
        self.hot().await?.list(Statement::LostClaim, &[&broker_id, tokens.as_vec()]).await
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

/// Parameter columns of the claim statement, with one element per wanted task type.
struct Columns {
    types: Vec<i32>,
    jobs: Vec<i32>,
    floors: Vec<i64>,
    largest: Vec<i64>,
    limited: Option<bool>,
}

impl Columns {
    fn new(wants: &[Want], limited: Option<bool>) -> Self {
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

/// Converts a row to a leased job. Columns are read by position because this runs once for each job.
fn leased_job(row: &Row) -> LeasedJob {
    // A role with SQL access may have written invalid headers. They are dropped, and the job is kept.
    let headers: Option<Json<_>> = row.try_get(8).unwrap_or_default();
    let options: Option<Json<_>> = row.try_get(9).unwrap_or_default();
    let payload: &[u8] = row.get(10);
    let options = options.map(|Json(o): Json<Box<JobOptions>>| o);
    let rank: i64 = row.get(3);
    // An invalid priority step distorts only the wait-time metric.
    let step_us = options.as_ref().and_then(|o| o.priority_step_us).unwrap_or(PRIORITY_STEP);
    let ready_us = rank.wrapping_sub(rank_base(row.get(14), step_us.clamp(0, PRIORITY_STEP)));
    let (type_id, now_us, created): (TypeId, i64, SystemTime) = (row.get(2), row.get(12), row.get(6));
    let created_us = created.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
    // Must give the same result as the SQL function `howdah.waited_us`. For a job with a fair key, the ready time
    // derived from the rank may be before the creation of the job.
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
        dependencies: Vec::new(),
        deadline_in_ms: row.get(11),
        waited_us: now_us.saturating_sub(ready_us),
        started: Started { type_id, at_us: now_us, waited_us },
        weight: row.get::<_, i32>(13) as u64,
    }
}
