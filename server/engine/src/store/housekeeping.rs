//! Statements of maintenance tasks: find work, promote due jobs, rescue leases, create and drop day partitions, delete
//! expired rows, correct times after the clock has gone back. The default partition of a table takes the rows of days
//! that have no partition.

use std::time::{Duration, SystemTime};

use howdah_core::job::{Lease, Ready, TypeId};

use super::{
    Statement, Store, StoreError,
    connection::Params,
    rows::{self, from_row, micros},
};

/// Timeout of the scan that proves that a default partition has no rows of a new partition's day. The scan blocks
/// neither readers nor writers.
const SCAN: Duration = Duration::from_secs(1800);

/// Tables from whose default partitions old rows are deleted, each with its partition column. The audit table is
/// missing here, because `drop_audit_partitions` handles it.
pub const DEFAULTS: [(&str, &str); 4] =
    [("history", "finished"), ("payload", "created"), ("job_tag", "created"), ("bulk_change", "changed")];

/// Position in the scan of scheduled jobs: the time and id of the last job seen.
pub(crate) type ScheduledPosition = (SystemTime, i64);

/// Result of the sweep, the statement that looks for work of all kinds. An idle broker looks for work only with this
/// statement, once per poll interval.
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
    /// Identity of the database.
    pub database: DatabaseInstance,
}

/// Identity of the database. It changes if another server is promoted, and if the schema is created again or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseInstance {
    /// Object id of the table of settings.
    settings_table: u32,
    /// Start time of the server.
    server_started: SystemTime,
}

from_row! { DatabaseInstance(row) { settings_table, server_started } }

from_row! {
    Sweep(row) {
        ready: {
            let types: Option<Vec<TypeId>> = row.get("type_ids");
            let ranks: Option<Vec<i64>> = row.get("ranks");
            types.unwrap_or_default().into_iter().zip(ranks.unwrap_or_default()).collect()
        },
        due_in_ms, deadline_in_ms, limit_in_ms, expiry_in_ms, schedule_in_ms, schedule_watches, bulk_in_ms,
        settings_version, broker_expired, now, database: DatabaseInstance::from_row(row),
    }
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

from_row! {
    NextDue(row) {
        job: micros(row, "job_in_us"),
        deadline: micros(row, "deadline_in_us"),
        expiry: micros(row, "expiry_in_us"),
        schedule: micros(row, "schedule_in_us"),
    }
}

from_row! { Ready(row) { type_id, lowest_rank, jobs: row.get::<_, i64>("jobs") as u64 } }

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

from_row! { PrunableDay(row) { day, types, keep } }

impl Store {
    /// Finds work of all kinds in one statement. Skips scheduled jobs that were due before `scheduled_floor`, because
    /// `promote` has already made them ready.
    pub async fn sweep(&self, scheduled_floor: Option<SystemTime>) -> Result<Sweep, StoreError> {
        self.hot().await?.one(Statement::Sweep, &[&scheduled_floor]).await
    }

    /// Returns the time until the next event of each kind.
    pub async fn next_due(&self) -> Result<NextDue, StoreError> {
        self.hot().await?.one(Statement::NextDue, &[]).await
    }

    /// Moves due scheduled jobs to ready. Returns also the floor for the next call: jobs that are due before this time
    /// need not be scanned again.
    pub async fn promote(
        &self,
        floor: Option<SystemTime>,
        at_most: i32,
    ) -> Result<(Vec<Ready>, Option<SystemTime>), StoreError> {
        let rows = self.hot().await?.query(Statement::Promote, &[&floor, &at_most]).await?;
        let next_floor = rows.first().map(|row| row.get("next_floor"));
        Ok((rows::all(&rows), next_floor))
    }

    /// Returns leases whose deadline has passed.
    pub async fn timed_out(&self, at_most: i32) -> Result<Vec<Lease>, StoreError> {
        self.hot().await?.list(Statement::TimedOut, &[&at_most]).await
    }

    /// Rescues at most `at_most` leases of expired brokers. Rescues none if the lease of the calling broker has
    /// expired.
    pub async fn rescue(&self, at_most: i32, by: i32) -> Result<Vec<Ready>, StoreError> {
        self.hot().await?.list(Statement::Rescue, &[&at_most, &by, &true]).await
    }

    /// Rescues leases as `rescue` does. Skips jobs whose rescue would free their job key, because another transaction
    /// may have locked the row of the key.
    pub async fn rescue_unkeyed(&self, at_most: i32, by: i32) -> Result<Vec<Ready>, StoreError> {
        self.hot().await?.list(Statement::Rescue, &[&at_most, &by, &false]).await
    }

    /// Returns days of history in which the retention has ended for some task types and not for others.
    pub async fn prunable_history(&self, days_kept: i32) -> Result<Vec<PrunableDay>, StoreError> {
        self.general().await?.list(Statement::PrunableHistory, &[&days_kept]).await
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
        connection.one(Statement::PruneHistory, &[&day.day, &day.types, &day.keep, &first_block, &blocks]).await
    }

    /// Records that the jobs of a day whose retention has ended are deleted. The day is scanned again when the
    /// retention of further task types ends.
    pub async fn history_pruned(&self, day: &PrunableDay) -> Result<(), StoreError> {
        let mut connection = self.general().await?;
        connection.run(Statement::HistoryPruned, &[&day.day, &day.types, &day.keep]).await
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
        self.hot().await?.run(Statement::Notify, &[&channel, &payload]).await
    }

    /// Creates the missing day partitions from yesterday to `days_ahead` days ahead, and returns their number. If a
    /// partition cannot be created because of a lock or a refusal, the others are still created, and the first error is
    /// returned at the end.
    pub async fn make_partitions(&self, days_ahead: i32) -> Result<i64, StoreError> {
        let missing = self.general().await?.query(Statement::MissingPartitions, &[&days_ahead]).await?;
        let (mut made, mut failed) = (0, None);
        for row in missing {
            match self.make_partition(row.get("parent"), row.get("by_column"), row.get("day")).await {
                Ok(new) => made += i64::from(new),
                Err(error @ (StoreError::Locked(_) | StoreError::Refused(_))) => {
                    failed.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        failed.map_or(Ok(made), Err)
    }

    async fn make_partition(&self, parent: &str, by_column: &str, day: &str) -> Result<bool, StoreError> {
        let params: Params<'_> = &[&parent, &by_column, &day];
        let make = async || -> Result<Option<bool>, StoreError> {
            self.general().await?.one(Statement::MakeDayPartition, params).await
        };
        if let Some(made) = make().await? {
            return Ok(made);
        }
        if !self.general().await?.query_one(Statement::ExcludeFromDefault, params).await?.get::<_, bool>("excluded") {
            return Ok(false);
        }
        self.query_within(SCAN, Statement::ValidateDefault, &[&parent, &day]).await?;
        Ok(make().await?.unwrap_or(false))
    }

    /// Records the lowest and highest job id of one more past partition of history or payload, so that a lookup by id
    /// can skip the partition. False if the ids of all past partitions are recorded.
    pub async fn record_id_range(&self) -> Result<bool, StoreError> {
        self.general().await?.one(Statement::RecordIdRange, &[]).await
    }

    /// Drops history partitions older than this many days. Returns their number.
    pub async fn drop_partitions(&self, days_kept: i32) -> Result<i32, StoreError> {
        self.general().await?.one(Statement::DropPartitions, &[&days_kept]).await
    }

    /// Drops audit partitions older than this many days. Returns their number.
    pub async fn drop_audit_partitions(&self, days_kept: i32) -> Result<i32, StoreError> {
        self.general().await?.one(Statement::DropAuditPartitions, &[&days_kept]).await
    }

    /// Deletes rows older than `days_kept` days from some blocks of a default partition. Returns the number of deleted
    /// rows, and the block to continue with.
    pub async fn delete_from_default(
        &self,
        (parent, by_column): (&str, &str),
        days_kept: i32,
        first_block: i64,
        blocks: i64,
    ) -> Result<(i64, Option<i64>), StoreError> {
        let mut connection = self.general().await?;
        connection.one(Statement::DeleteFromDefault, &[&parent, &by_column, &days_kept, &first_block, &blocks]).await
    }

    /// Returns the current time of the database.
    pub async fn clock(&self) -> Result<SystemTime, StoreError> {
        self.general().await?.one(Statement::Clock, &[]).await
    }

    /// Whether the database clock has gone back since stored times were last corrected.
    pub async fn clock_went_back(&self) -> Result<bool, StoreError> {
        self.general().await?.one(Statement::ClockWentBack, &[]).await
    }

    /// Corrects stored times that are in the future because the database clock has gone back.
    pub async fn correct_times(&self) -> Result<(), StoreError> {
        self.general().await?.run(Statement::CorrectTimes, &[]).await
    }

    /// Corrects the retry times of some scheduled jobs after the database clock has gone back. Returns the position to
    /// continue from.
    pub async fn correct_scheduled_times(
        &self,
        from: Option<ScheduledPosition>,
        at_most: i32,
    ) -> Result<Option<ScheduledPosition>, StoreError> {
        let (time, id) = from.unzip();
        let row = self.general().await?.query_one(Statement::CorrectScheduledTimes, &[&time, &id, &at_most]).await?;
        Ok(row.get::<_, Option<SystemTime>>("last_time").zip(row.get("last_id")))
    }
}
