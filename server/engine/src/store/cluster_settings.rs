//! Cluster settings, which all brokers of a store share; the number of the store, which distinguishes its job ids from
//! ids of other stores; and whether the store is closed to new jobs.

use std::time::{Duration, SystemTime};

use howdah_core::job::{Closed, ClusterSettings, ClusterSettingsChange, StoreNumber};
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::{Change, SettingsBefore},
    rows::{FromRow as _, from_row, millis},
    transaction::{Transaction, retry_while_locked_in_side_lane},
};

/// Facts that identify a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    pub number: StoreNumber,
    /// Identity of the database. A copy of the database has the same identity.
    pub identity: String,
    /// Whether the store has given out job ids. Then its number can no longer change, because the ids contain it.
    pub has_ids: bool,
}

impl Store {
    pub async fn cluster_settings(&self) -> Result<ClusterSettings, StoreError> {
        self.general().await?.one(Statement::ClusterSettings, &[]).await
    }

    /// Returns the cluster settings, and details of the closure if the store is closed to new jobs.
    pub async fn cluster_state(&self) -> Result<(ClusterSettings, Option<Closed>), StoreError> {
        let row = self.general().await?.query_one(Statement::ClusterSettings, &[]).await?;
        Ok((ClusterSettings::from_row(&row), closed(&row)))
    }

    /// Returns how far tests have advanced the database clock. `None` if the database has no test clock.
    pub async fn clock_ahead(&self) -> Result<Option<Duration>, StoreError> {
        let ahead: Option<i64> = self.general().await?.one(Statement::ClockAhead, &[]).await?;
        Ok(ahead.map(|ms| Duration::from_millis(ms.max(0) as u64)))
    }

    /// Advances the test clock. Returns the new settings version.
    pub async fn advance_clock(&self, duration: Duration, by: &Actor) -> Result<i64, StoreError> {
        let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let advance = |store: Self| async move {
            let mut transaction = store.begin().await?;
            let before = SettingsBefore::read(&mut transaction, SettingsBefore::CLUSTER, "").await?;
            let version = transaction.one(Statement::AdvanceClock, &[&ms]).await?;
            transaction.record(by, &Change { count: 1, before: Some(before), ..Change::default() }).await?;
            transaction.commit().await?;
            Ok(version)
        };
        retry_while_locked_in_side_lane(self, advance).await
    }

    /// Closes the store to new jobs, and records the store name `name` with the closure. Returns the settings version,
    /// or `None` if the store was already closed.
    pub(crate) async fn close(&self, name: &str, by: &Actor) -> Result<Option<i64>, StoreError> {
        let change = |store: Self| async move {
            let mut transaction = store.begin_general().await?;
            let version = transaction.one(Statement::CloseStore, &[&name, &by.name()]).await?;
            finish(transaction, version, name, by).await
        };
        retry_while_locked_in_side_lane(self, change).await
    }

    /// Opens the store to new jobs. Returns the settings version, or `None` if the store was already open.
    pub(crate) async fn reopen(&self, name: &str, by: &Actor) -> Result<Option<i64>, StoreError> {
        let change = |store: Self| async move {
            let mut transaction = store.begin_general().await?;
            let version = transaction.one(Statement::OpenStore, &[]).await?;
            finish(transaction, version, name, by).await
        };
        retry_while_locked_in_side_lane(self, change).await
    }

    /// Whether the store has an unfinished job.
    pub(crate) async fn has_unfinished(&self) -> Result<bool, StoreError> {
        self.general().await?.one(Statement::HasUnfinished, &[]).await
    }

    /// Reads the facts that identify this store.
    pub async fn facts(&self) -> Result<StoreFacts, StoreError> {
        let row = self.general().await?.query_one(Statement::StoreFacts, &[]).await?;
        let number: i32 = row.get("number");
        let known = u16::try_from(number).ok().and_then(StoreNumber::new);
        let number = known.ok_or_else(|| {
            let range = format!("sequence job_id starts in the range of store number {number}, which is not valid");
            StoreError::Refused(range.into())
        })?;
        Ok(StoreFacts { number, identity: row.get("identity"), has_ids: row.get("has_ids") })
    }

    /// Returns the names of the server's databases to which the broker's role may connect.
    pub async fn databases(&self) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::Databases, &[]).await
    }

    /// Writes an audit entry for a change of the broker's stores.
    pub async fn record_stores(&self, names: Vec<String>, by: &Actor) -> Result<(), StoreError> {
        let mut transaction = self.begin_general().await?;
        let count = i64::try_from(names.len()).unwrap_or(i64::MAX);
        transaction.record(by, &Change { count, ids: names, ..Change::default() }).await?;
        transaction.commit().await
    }

    /// Sets the store number. Must run before the first job is stored, and while no broker serves the store.
    pub async fn set_number(&self, number: StoreNumber, by: &Actor) -> Result<(), StoreError> {
        let mut transaction = self.begin_general().await?;
        transaction.query(Statement::SetStoreNumber, &[&i32::from(number.get())]).await?;
        transaction.record(by, &Change { count: 1, ids: vec![number.to_string()], ..Change::default() }).await?;
        transaction.commit().await
    }

    /// Changes cluster settings. Returns the new cluster settings and the new settings version.
    pub async fn update_cluster_settings(
        &self,
        change: &ClusterSettingsChange,
        by: &Actor,
    ) -> Result<(ClusterSettings, i64), StoreError> {
        let number = |value: Option<usize>| value.map(|value| i32::try_from(value).unwrap_or(i32::MAX));
        let ms = |value: Option<Duration>| value.map(|value| i64::try_from(value.as_millis()).unwrap_or(i64::MAX));
        let update = |store: Self| async move {
            let mut transaction = store.begin().await?;
            transaction.query(Statement::LockSettings, &[]).await?;
            let before = SettingsBefore::read(&mut transaction, SettingsBefore::CLUSTER, "").await?;
            let row = transaction
                .query_one(
                    Statement::UpdateClusterSettings,
                    &[
                        &number(change.payload_bytes),
                        &number(change.headers),
                        &number(change.header_bytes),
                        &number(change.key_bytes),
                        &number(change.batch),
                        &ms(change.max_delay),
                        &ms(change.max_timeout),
                        &number(change.task_types),
                        &number(change.dead_days),
                    ],
                )
                .await?;
            transaction.record(by, &Change { count: 1, before: Some(before), ..Change::default() }).await?;
            transaction.commit().await?;
            Ok((ClusterSettings::from_row(&row), row.get("version")))
        };
        retry_while_locked_in_side_lane(self, update).await
    }
}

/// Writes the audit row of closing or opening the named store, unless nothing has changed. Commits the transaction.
async fn finish(
    mut transaction: Transaction<'_>,
    version: Option<i64>,
    name: &str,
    by: &Actor,
) -> Result<Option<i64>, StoreError> {
    if version.is_some() {
        transaction.record(by, &Change::of_ids(&[name.to_owned()])).await?;
    }
    transaction.commit().await?;
    Ok(version)
}

fn closed(row: &Row) -> Option<Closed> {
    let text = |column: &str| row.get::<_, Option<String>>(column).unwrap_or_default();
    Some(Closed {
        since: row.get::<_, Option<SystemTime>>("closed")?,
        name: text("closed_name"),
        by: text("closed_by"),
    })
}

from_row! {
    ClusterSettings(row) {
        payload_bytes: size(row, "payload_bytes"),
        headers: size(row, "headers"),
        header_bytes: size(row, "header_bytes"),
        key_bytes: size(row, "key_bytes"),
        batch: size(row, "batch"),
        max_delay: millis(row, "max_delay_ms").unwrap_or_default(),
        max_timeout: millis(row, "max_timeout_ms").unwrap_or_default(),
        task_types: size(row, "task_types"),
        dead_days: size(row, "dead_days"),
    }
}

fn size(row: &Row, column: &str) -> usize {
    usize::try_from(row.get::<_, i32>(column)).unwrap_or_default()
}
