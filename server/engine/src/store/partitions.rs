//! Creates and drops day partitions. Each statement creates one partition, so that it holds its locks only for a short
//! time. The default partition of a table takes the rows of days that have no partition.

use std::time::Duration;

use super::{Statement, Store, StoreError, connection::Params};

/// Timeout of the scan that proves that a default partition has no rows of a new partition's day. The scan blocks
/// neither readers nor writers.
const SCAN: Duration = Duration::from_secs(1800);

/// Tables from whose default partitions old rows are deleted, each with its partition column. The audit table is
/// missing here, because `drop_audit_partitions` handles it.
pub const DEFAULTS: [(&str, &str); 4] =
    [("history", "finished"), ("payload", "created"), ("job_tag", "created"), ("bulk_change", "changed")];

impl Store {
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
            Ok(self.general().await?.query_one(Statement::MakeDayPartition, params).await?.get("made"))
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
        Ok(self.general().await?.query_one(Statement::RecordIdRange, &[]).await?.get("recorded"))
    }

    /// Drops history partitions older than this many days. Returns their number.
    pub async fn drop_partitions(&self, days_kept: i32) -> Result<i32, StoreError> {
        Ok(self.general().await?.query_one(Statement::DropPartitions, &[&days_kept]).await?.get(0))
    }

    /// Drops audit partitions older than this many days. Returns their number.
    pub async fn drop_audit_partitions(&self, days_kept: i32) -> Result<i32, StoreError> {
        Ok(self.general().await?.query_one(Statement::DropAuditPartitions, &[&days_kept]).await?.get(0))
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
        let row = connection
            .query_one(Statement::DeleteFromDefault, &[&parent, &by_column, &days_kept, &first_block, &blocks])
            .await?;
        Ok((row.get("deleted"), row.get("next_block")))
    }
}
