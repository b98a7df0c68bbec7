//! Background statements: look for work, promote due jobs, rescue leases, maintain the partitions of history.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::{Statement, Store, StoreError};
use crate::job::{Lease, TypeId};

/// The answer to the question that an idle broker asks once per poll interval.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// Types that have ready jobs, with their lowest ranks.
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
    /// ms until a bulk operation without an owner goes on.
    pub bulk_in_ms: Option<i64>,
    /// Changes when the settings of a task type or of the cluster change.
    pub settings_version: i64,
    /// Whether leases of an expired broker must be rescued.
    pub broker_expired: bool,
}

/// How long it is until something is due that is not due yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextDue {
    /// A scheduled job.
    pub job: Option<Duration>,
    /// The deadline of an attempt.
    pub deadline: Option<Duration>,
    /// A job that expires.
    pub expiry: Option<Duration>,
    /// A schedule.
    pub schedule: Option<Duration>,
}

/// Jobs of a type that became ready.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The type.
    pub type_id: TypeId,
    /// The lowest rank among them.
    pub lowest_rank: i64,
    /// The number of jobs.
    pub jobs: i64,
}

/// A day of history whose jobs are not all kept for the same time.
#[derive(Clone, Debug)]
pub struct PrunableDay {
    /// As `2026-11-22`.
    pub day: String,
    /// Ids of types.
    pub types: Vec<TypeId>,
    /// Whether jobs of these types are kept and all others deleted, or the reverse.
    pub keep: bool,
}

impl Store {
    /// Looks for all kinds of work, in one statement.
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
            bulk_in_ms: row.get("bulk_in_ms"),
            settings_version: row.get("settings_version"),
            broker_expired: row.get("broker_expired"),
        })
    }

    /// What is due next.
    pub async fn next_due(&self) -> Result<NextDue, StoreError> {
        let row = self.hot().await?.query_one(Statement::NextDue, &[]).await?;
        let of = |column: &str| {
            let us: Option<i64> = row.get(column);
            us.map(|us| Duration::from_micros(us.max(0) as u64))
        };
        Ok(NextDue {
            job: of("job_in_us"),
            deadline: of("deadline_in_us"),
            expiry: of("expiry_in_us"),
            schedule: of("schedule_in_us"),
        })
    }

    /// Moves due scheduled jobs to ready; returns where to start the next time.
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

    /// Takes back leases of dead brokers, at most this many; none if the broker that does it counts as dead itself.
    pub async fn rescue(&self, at_most: i32, by: i32) -> Result<Vec<Moved>, StoreError> {
        self.rescue_some(at_most, by, true).await
    }

    /// The same, without jobs that free their key: another transaction may have locked one of the keys.
    pub async fn rescue_unkeyed(&self, at_most: i32, by: i32) -> Result<Vec<Moved>, StoreError> {
        self.rescue_some(at_most, by, false).await
    }

    async fn rescue_some(&self, at_most: i32, by: i32, keyed: bool) -> Result<Vec<Moved>, StoreError> {
        let rows = self.hot().await?.query(Statement::Rescue, &[&at_most, &by, &keyed]).await?;
        Ok(rows.iter().map(moved).collect())
    }

    /// Creates history partitions up to this many days ahead; returns how many were missing.
    pub async fn make_partitions(&self, days_ahead: i32) -> Result<i64, StoreError> {
        Ok(self.general().await?.query_one(Statement::MakePartitions, &[&days_ahead]).await?.get(0))
    }

    /// Drops history partitions older than this many days; returns how many.
    pub async fn drop_partitions(&self, days_kept: i32) -> Result<i32, StoreError> {
        Ok(self.general().await?.query_one(Statement::DropPartitions, &[&days_kept]).await?.get(0))
    }

    /// Days of history in which jobs of some types are due for deletion and those of others are not.
    pub async fn prunable_history(&self, days_kept: i32) -> Result<Vec<PrunableDay>, StoreError> {
        let rows = self.general().await?.query(Statement::PrunableHistory, &[&days_kept]).await?;
        let day = |row: &Row| PrunableDay { day: row.get("day"), types: row.get("types"), keep: row.get("keep") };
        Ok(rows.iter().map(day).collect())
    }

    /// Deletes from some blocks of a day; returns the number of jobs, and the block to go on from.
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

    /// Notes that a day needs no more pruning until it is older or settings change.
    pub async fn history_pruned(&self, day: &PrunableDay) -> Result<(), StoreError> {
        let mut connection = self.general().await?;
        connection.query(Statement::HistoryPruned, &[&day.day, &day.types, &day.keep]).await.map(drop)
    }

    /// Deletes request keys older than a day, at most this many; returns whether there may be more.
    pub async fn delete_expired_requests(&self, at_most: i32) -> Result<bool, StoreError> {
        let rows = self.general().await?.query(Statement::DeleteExpiredRequests, &[&at_most]).await?;
        Ok(rows.len() >= at_most as usize)
    }

    /// Notifies the brokers that listen on the channel.
    pub async fn notify(&self, channel: &str, payload: &str) -> Result<(), StoreError> {
        self.hot().await?.query(Statement::Notify, &[&channel, &payload]).await.map(drop)
    }
}

fn moved(row: &Row) -> Moved {
    Moved { type_id: row.get("type_id"), lowest_rank: row.get("lowest_rank"), jobs: row.get("jobs") }
}
