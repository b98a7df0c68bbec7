//! Figures that show whether maintenance tasks keep up, and how large the tables are.

use std::time::Duration;

use super::{Statement, Store, StoreError};

/// Maintenance figures for metrics.
#[derive(Clone, Debug, Default)]
pub struct Upkeep {
    /// Time by which the most overdue schedule is late. Zero if no schedule is late.
    pub schedule_delay: Duration,
    /// Number of active schedules whose last attempt to fire failed.
    pub schedules_failing: i64,
    /// Number of days among the next `days` days for which all day partitions exist.
    pub days_ahead: i64,
    /// Name and size of each table. Sizes are in bytes, as of the last VACUUM or ANALYZE.
    pub tables: Vec<(String, i64)>,
}

impl Store {
    /// Reads the maintenance figures. Looks for partitions on the next `days` days.
    pub async fn upkeep(&self, days: i32) -> Result<Upkeep, StoreError> {
        let row = self.general().await?.query_one(Statement::Upkeep, &[&days]).await?;
        let names = row.get::<_, Option<Vec<String>>>("tables").unwrap_or_default();
        let bytes = row.get::<_, Option<Vec<i64>>>("bytes").unwrap_or_default();
        Ok(Upkeep {
            schedule_delay: Duration::from_millis(
                row.get::<_, Option<i64>>("delay_ms").unwrap_or_default().max(0) as u64
            ),
            schedules_failing: row.get("failing"),
            days_ahead: row.get("days_ahead"),
            tables: names.into_iter().zip(bytes).collect(),
        })
    }

    /// Counts days that ended at least `minutes` ago and are not archived. 0 if archiving is off.
    pub async fn archive_overdue(&self, minutes: i32) -> Result<i64, StoreError> {
        Ok(self.general().await?.query_one(Statement::ArchiveOverdue, &[&minutes]).await?.get(0))
    }

    /// Turns archiving on: from now on, no broker drops a day that is not archived.
    pub async fn set_archive_target(&self, url: &str, who: &str) -> Result<(), StoreError> {
        self.general().await?.query(Statement::SetArchiveTarget, &[&url, &who]).await.map(drop)
    }
}
