//! Statements of maintenance tasks: find work, promote due jobs, rescue leases, delete expired rows.

use std::time::{Duration, SystemTime};

use howdah_core::job::{Lease, TypeId};
use tokio_postgres::Row;

use super::{Statement, Store, StoreError};

/// Result of the sweep, the statement that looks for work of all kinds. An idle broker runs only this statement, once
/// per poll interval.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Task types with ready jobs, and the lowest rank of each.
    pub ready: Vec<(TypeId, i64)>,
    /// Time in ms until the next scheduled job is due. Negative if it is overdue.
    pub due_in_ms: Option<i64>,
    /// Time in ms until the next deadline of an attempt.
    pub deadline_in_ms: Option<i64>,
    /// Time in ms until the next check of a limit key.
    pub limit_in_ms: Option<i64>,
    /// Time in ms until the next job expires.
    pub expiry_in_ms: Option<i64>,
    /// Time in ms until the next check of a schedule.
    pub schedule_in_ms: Option<i64>,
    /// Whether a schedule waits for jobs that it has fired before it fires again.
    pub schedule_watches: bool,
    /// Time in ms until a bulk operation without a living owner is due. `None` if none is running.
    pub bulk_in_ms: Option<i64>,
    /// Version of the settings of task types and of the cluster. Increases with each change.
    pub settings_version: i64,
    /// Whether the row of a broker has expired, so that the leases of its workers must be rescued.
    pub broker_expired: bool,
    /// Database time.
    pub now: SystemTime,
}

/// Time until the next event of each kind. Events that are already due do not count, because they are being processed.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextDue {
    /// Time until the next scheduled job is due.
    pub job: Option<Duration>,
    /// Time until the next deadline of an attempt.
    pub deadline: Option<Duration>,
    /// Time until the next job expires.
    pub expiry: Option<Duration>,
    /// Time until the next schedule fires.
    pub schedule: Option<Duration>,
}

/// Jobs of one task type that became ready.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    pub type_id: TypeId,
    /// Lowest rank of the jobs that became ready.
    pub lowest_rank: i64,
    /// Number of jobs that became ready.
    pub jobs: i64,
}

/// A day of history in which the retention has ended for some task types only, so that jobs of these types must be
/// deleted one by one.
#[derive(Clone, Debug)]
pub struct PrunableDay {
    /// UTC day, such as `2026-11-22`.
    pub day: String,
    /// Ids of the task types to which `keep` applies.
    pub types: Vec<TypeId>,
    /// True: jobs of the task types in `types` are kept, and all others are deleted. False: only jobs of these task
    /// types are deleted.
    pub keep: bool,
}

impl Store {
    /// Finds work of all kinds in one statement. Skips scheduled jobs that were due before `scheduled_floor`, because
    /// `promote` has already made them ready.
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
            now: row.get("now"),
        })
    }

    /// Returns the time until the next event of each kind.
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

    /// Moves due scheduled jobs to ready. Returns also the floor for the next call: jobs that are due before this time
    /// need not be scanned again.
    pub async fn promote(
        &self,
        floor: Option<SystemTime>,
        at_most: i32,
    ) -> Result<(Vec<Moved>, Option<SystemTime>), StoreError> {
        let rows = self.hot().await?.query(Statement::Promote, &[&floor, &at_most]).await?;
        let next_floor = rows.first().map(|row| row.get("next_floor"));
        Ok((rows.iter().map(moved).collect(), next_floor))
    }

    /// Returns leases whose deadline has passed.
    pub async fn timed_out(&self, at_most: i32) -> Result<Vec<Lease>, StoreError> {
        let rows = self.hot().await?.query(Statement::TimedOut, &[&at_most]).await?;
        Ok(rows.iter().map(|row| Lease { id: row.get(0), token: row.get(1) }).collect())
    }

    /// Rescues at most `at_most` leases of expired brokers. Rescues none if the lease of the calling broker has
    /// expired.
    pub async fn rescue(&self, at_most: i32, by: i32) -> Result<Vec<Moved>, StoreError> {
        self.rescue_some(at_most, by, true).await
    }

    /// Rescues leases as `rescue` does. Skips jobs whose rescue would free their job key, because another transaction
    /// may have locked the row of the key.
    pub async fn rescue_unkeyed(&self, at_most: i32, by: i32) -> Result<Vec<Moved>, StoreError> {
        self.rescue_some(at_most, by, false).await
    }

    async fn rescue_some(&self, at_most: i32, by: i32, keyed: bool) -> Result<Vec<Moved>, StoreError> {
        let rows = self.hot().await?.query(Statement::Rescue, &[&at_most, &by, &keyed]).await?;
        Ok(rows.iter().map(moved).collect())
    }

    /// Returns days of history in which the retention has ended for some task types and not for others.
    pub async fn prunable_history(&self, days_kept: i32) -> Result<Vec<PrunableDay>, StoreError> {
        let rows = self.general().await?.query(Statement::PrunableHistory, &[&days_kept]).await?;
        let day = |row: &Row| PrunableDay { day: row.get("day"), types: row.get("types"), keep: row.get("keep") };
        Ok(rows.iter().map(day).collect())
    }

    /// Deletes jobs whose retention has ended from some blocks of a history partition. Returns the number of deleted
    /// jobs, and the block to continue with.
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

    /// Records that the jobs of a day whose retention has ended are deleted. The day is scanned again when the
    /// retention of further task types ends.
    pub async fn history_pruned(&self, day: &PrunableDay) -> Result<(), StoreError> {
        let mut connection = self.general().await?;
        connection.query(Statement::HistoryPruned, &[&day.day, &day.types, &day.keep]).await.map(drop)
    }

    /// Deletes at most `at_most` request keys that are older than a day. Returns whether more such keys may exist.
    pub async fn delete_expired_requests(&self, at_most: i32) -> Result<bool, StoreError> {
        let rows = self.general().await?.query(Statement::DeleteExpiredRequests, &[&at_most]).await?;
        Ok(rows.len() >= at_most as usize)
    }

    /// Deletes at most `at_most` versions of keys that are older than the history of their type, or than `days_kept`.
    /// Returns whether more may exist.
    pub async fn forget_key_versions(&self, days_kept: i32, at_most: i32) -> Result<bool, StoreError> {
        let rows = self.general().await?.query(Statement::ForgetKeyVersions, &[&days_kept, &at_most]).await?;
        Ok(rows.len() >= at_most as usize)
    }

    /// Sends a notification to brokers that listen on the channel.
    pub async fn notify(&self, channel: &str, payload: &str) -> Result<(), StoreError> {
        self.hot().await?.query(Statement::Notify, &[&channel, &payload]).await.map(drop)
    }
}

fn moved(row: &Row) -> Moved {
    Moved { type_id: row.get("type_id"), lowest_rank: row.get("lowest_rank"), jobs: row.get("jobs") }
}
