//! What brokers do by the clock: look for work, promote what is due, rescue, keep history in days.

use std::time::SystemTime;

use tokio_postgres::Row;

use super::{Statement, Store, StoreError};
use crate::job::{Lease, TypeId};

/// What an idle broker asks once a poll interval.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// Types that have ready jobs, each with the lowest rank.
    pub ready: Vec<(TypeId, i64)>,
    /// ms until the next scheduled job is due; negative: overdue.
    pub due_in_ms: Option<i64>,
    /// ms until the next deadline.
    pub deadline_in_ms: Option<i64>,
    /// ms until a limit key is to be checked.
    pub limit_in_ms: Option<i64>,
    /// ms until a job expires.
    pub expiry_in_ms: Option<i64>,
    /// ms until a schedule is to be checked.
    pub schedule_in_ms: Option<i64>,
    /// A schedule waits for its jobs to finish.
    pub schedule_watches: bool,
    /// Changes when settings of a task type or of the cluster do.
    pub settings_version: i64,
    /// Somebody's leases must be rescued.
    pub broker_expired: bool,
}

/// Jobs of a type that became ready.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The type.
    pub type_id: TypeId,
    /// The lowest rank among them.
    pub lowest_rank: i64,
    /// How many.
    pub jobs: i64,
}

/// A day of history whose jobs are not all kept equally long.
#[derive(Clone, Debug)]
pub struct PrunableDay {
    /// As `2026-11-22`.
    pub day: String,
    /// Types, by their keys.
    pub types: Vec<TypeId>,
    /// Their jobs are kept, all others deleted; else they are deleted.
    pub keep: bool,
}

impl Store {
    /// Looks at everything that may need doing, in one statement.
    pub async fn sweep(&self, scheduled_floor: Option<SystemTime>) -> Result<Sweep, StoreError> {
        let row = self.hot().await?.query_one(Statement::Sweep, &[&scheduled_floor]).await?;
        let types: Option<Vec<TypeId>> = row.get("type_ids");
        let ranks: Option<Vec<i64>> = row.get("ranks");
        Ok(Sweep {
            ready: types.unwrap_or_default().into_iter().zip(ranks.unwrap_or_default()).collect(),
            due_in_ms: row.get("due_in_ms"),
            deadline_in_ms: row.get("deadline_in_ms"),
            limit_in_ms: row.get("limit_in_ms"),
            expiry_in_ms: row.get("expiry_in_ms"),
            schedule_in_ms: row.get("schedule_in_ms"),
            schedule_watches: row.get("schedule_watches"),
            settings_version: row.get("settings_version"),
            broker_expired: row.get("broker_expired"),
        })
    }

    /// Moves scheduled jobs that are due to ready, and says from where to look the next time.
    pub async fn promote(
        &self,
        floor: Option<SystemTime>,
        at_most: i32,
    ) -> Result<(Vec<Moved>, Option<SystemTime>), StoreError> {
        let rows = self.hot().await?.query(Statement::Promote, &[&floor, &at_most]).await?;
        let next_floor = rows.first().map(|row| row.get("next_floor"));
        Ok((rows.iter().map(moved).collect(), next_floor))
    }

    /// Leases whose deadline has passed.
    pub async fn timed_out(&self, at_most: i32) -> Result<Vec<Lease>, StoreError> {
        let rows = self.hot().await?.query(Statement::TimedOut, &[&at_most]).await?;
        Ok(rows.iter().map(|row| Lease { id: row.get(0), token: row.get(1) }).collect())
    }

    /// Takes leases of dead brokers back, so many at most; nothing, if the broker that does it counts as dead itself.
    pub async fn rescue(&self, at_most: i32, by: i32) -> Result<Vec<Moved>, StoreError> {
        let rows = self.hot().await?.query(Statement::Rescue, &[&at_most, &by]).await?;
        Ok(rows.iter().map(moved).collect())
    }

    /// Makes history partitions up to so many days ahead; how many were missing.
    pub async fn make_partitions(&self, days_ahead: i32) -> Result<i64, StoreError> {
        Ok(self.general().await?.query_one(Statement::MakePartitions, &[&days_ahead]).await?.get(0))
    }

    /// Drops history partitions older than so many days; how many.
    pub async fn drop_partitions(&self, days_kept: i32) -> Result<i32, StoreError> {
        Ok(self.general().await?.query_one(Statement::DropPartitions, &[&days_kept]).await?.get(0))
    }

    /// Days of history in which some types have jobs that are to be deleted while those of others stay.
    pub async fn prunable_history(&self, days_kept: i32) -> Result<Vec<PrunableDay>, StoreError> {
        let rows = self.general().await?.query(Statement::PrunableHistory, &[&days_kept]).await?;
        let day = |row: &Row| PrunableDay { day: row.get("day"), types: row.get("types"), keep: row.get("keep") };
        Ok(rows.iter().map(day).collect())
    }

    /// Deletes from some blocks of a day, from the first one on; how many jobs, and where to go on.
    pub async fn prune_history(
        &self,
        day: &PrunableDay,
        first_block: i64,
        blocks: i64,
    ) -> Result<(i64, Option<i64>), StoreError> {
        let mut connection = self.general().await?;
        let row = connection
            .query_one(Statement::PruneHistory, &[&day.day, &day.types, &day.keep, &first_block, &blocks])
            .await?;
        Ok((row.get("deleted"), row.get("next_block")))
    }

    /// A day needs no more pruning until it is older or settings change.
    pub async fn history_pruned(&self, day: &PrunableDay) -> Result<(), StoreError> {
        let mut connection = self.general().await?;
        connection.query(Statement::HistoryPruned, &[&day.day, &day.types, &day.keep]).await.map(drop)
    }

    /// Deletes request keys older than a day, `at_most` of them; true if there may be more.
    pub async fn delete_expired_requests(&self, at_most: i32) -> Result<bool, StoreError> {
        let rows = self.general().await?.query(Statement::DeleteExpiredRequests, &[&at_most]).await?;
        Ok(rows.len() >= at_most as usize)
    }

    /// Tells the brokers that listen on the channel.
    pub async fn notify(&self, channel: &str, payload: &str) -> Result<(), StoreError> {
        self.hot().await?.query(Statement::Notify, &[&channel, &payload]).await.map(drop)
    }
}

fn moved(row: &Row) -> Moved {
    Moved { type_id: row.get("type_id"), lowest_rank: row.get("lowest_rank"), jobs: row.get("jobs") }
}
