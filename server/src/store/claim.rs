//! ready → leased, for every type that has workers with room, in one statement.

use postgres_types::Json;
use tokio_postgres::Row;

use super::{Statement, Store, StoreError};
use crate::job::{Lease, LeasedJob, Options, PRIORITY_STEP, TypeId, rank_base};

/// What is wanted of one type.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// The type.
    pub type_id: TypeId,
    /// Jobs at most.
    pub jobs: i32,
    /// Rank to start from.
    pub floor: i64,
    /// Weight of a job at most.
    pub largest: i64,
}

/// A claim.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// What is wanted, a type at most once.
    pub wants: Vec<Want>,
    /// Who claims; `None`: a pull, whose leases live by their deadline.
    pub broker_id: Option<i32>,
    /// Bytes at most; the first job always goes.
    pub bytes: i64,
    /// Jobs at most, of all types together.
    pub total: i32,
    /// How long the leases last; `None`: as long as the broker.
    pub lease_ms: Option<i64>,
    /// Random, new for each claim: the tokens are hashes under it.
    pub token_key: i64,
}

impl Store {
    /// Claims; the jobs in the order of their ranks.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<LeasedJob>, StoreError> {
        let types: Vec<i32> = request.wants.iter().map(|w| w.type_id).collect();
        let jobs: Vec<i32> = request.wants.iter().map(|w| w.jobs).collect();
        let floors: Vec<i64> = request.wants.iter().map(|w| w.floor).collect();
        let largest: Vec<i64> = request.wants.iter().map(|w| w.largest).collect();
        let mut connection = self.hot().await?;
        let rows = connection
            .query(
                Statement::Claim,
                &[
                    &types,
                    &jobs,
                    &floors,
                    &largest,
                    &request.broker_id,
                    &request.bytes,
                    &request.token_key,
                    &request.lease_ms,
                    &request.total,
                ],
            )
            .await?;
        let mut claimed: Vec<LeasedJob> = rows.iter().map(leased_job).collect();
        claimed.sort_unstable_by_key(|job| (job.rank, job.lease.id));
        Ok(claimed)
    }

    /// The leases of a claim whose answer was lost.
    pub async fn lost_claim(&self, broker_id: i32, token_key: i64) -> Result<Vec<Lease>, StoreError> {
        let rows = self.hot().await?.query(Statement::LostClaim, &[&broker_id, &token_key]).await?;
        Ok(rows.iter().map(|row| Lease { id: row.get(0), token: row.get(1) }).collect())
    }
}

/// Columns by position: this runs once a job.
fn leased_job(row: &Row) -> LeasedJob {
    // Somebody with SQL may have put anything there: such headers are dropped, the job is not.
    let headers: Option<Json<_>> = row.try_get(8).unwrap_or_default();
    let options: Option<Json<_>> = row.try_get(9).unwrap_or_default();
    let payload: &[u8] = row.get(10);
    let options = options.map(|Json(o): Json<Options>| o);
    let rank: i64 = row.get(3);
    // Any step that somebody may have written: it only spoils this figure.
    let step_us = options.as_ref().and_then(|o| o.priority_step_us).unwrap_or(PRIORITY_STEP);
    let ready_us = rank.wrapping_sub(rank_base(row.get(14), step_us.clamp(0, PRIORITY_STEP)));
    LeasedJob {
        lease: Lease { id: row.get(0), token: row.get(1) },
        type_id: row.get(2),
        rank,
        attempt: row.get(4),
        max_attempts: row.get(5),
        created: row.get(6),
        deadline: row.get(7),
        headers: headers.map(|Json(h)| h).unwrap_or_default(),
        options,
        payload: payload.to_vec().into(),
        deadline_in_ms: row.get(11),
        waited_us: row.get::<_, i64>(12).saturating_sub(ready_us),
        weight: row.get::<_, i32>(13) as u64,
    }
}
