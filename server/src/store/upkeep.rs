//! Whether brokers keep up with what happens by the clock, and how large the tables are.

use std::time::Duration;

use super::{Statement, Store, StoreError};

/// Figures for the metrics.
#[derive(Clone, Debug, Default)]
pub struct Upkeep {
    /// How long the most overdue planned time of a schedule has been due.
    pub schedule_delay: Duration,
    /// Schedules whose last planned time could not fire.
    pub schedules_failing: i64,
    /// Days after today whose partitions exist.
    pub days_ahead: i64,
    /// Tables with their bytes, as of their last VACUUM or ANALYZE.
    pub tables: Vec<(String, i64)>,
}

impl Store {
    /// Reads the figures; partitions are looked for on so many days.
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

    /// How many days have been over for these minutes and are not archived; 0 if none are to be archived.
    pub async fn archive_overdue(&self, minutes: i32) -> Result<i64, StoreError> {
        Ok(self.general().await?.query_one(Statement::ArchiveOverdue, &[&minutes]).await?.get(0))
    }

    /// From now on no broker drops a day that is not archived.
    pub async fn set_archive_target(&self, url: &str, who: &str) -> Result<(), StoreError> {
        self.general().await?.query(Statement::SetArchiveTarget, &[&url, &who]).await.map(drop)
    }
}
