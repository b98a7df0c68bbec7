//! The database clock, and the correction of stored times after the clock has gone back.

use std::time::SystemTime;

use super::{Statement, Store, StoreError};

/// Position in the scan of scheduled jobs: the time and id of the last job seen.
pub(crate) type ScheduledPosition = (SystemTime, i64);

impl Store {
    /// Returns the current time of the database.
    pub async fn clock(&self) -> Result<SystemTime, StoreError> {
        Ok(self.general().await?.query_one(Statement::Clock, &[]).await?.get("now"))
    }

    /// Whether the database clock has gone back since stored times were last corrected.
    pub async fn clock_went_back(&self) -> Result<bool, StoreError> {
        Ok(self.general().await?.query_one(Statement::ClockWentBack, &[]).await?.get("went_back"))
    }

    /// Corrects stored times that are in the future because the database clock has gone back.
    pub async fn correct_times(&self) -> Result<(), StoreError> {
        self.general().await?.query(Statement::CorrectTimes, &[]).await.map(drop)
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
