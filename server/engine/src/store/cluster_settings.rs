//! Cluster settings, which all brokers of a store share, and whether the store is closed to new jobs.

use std::time::{Duration, SystemTime};

use howdah_core::job::{Closed, ClusterSettings, ClusterSettingsChange};
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::{Change, SettingsBefore},
    transaction::{Transaction, retry_while_locked_in_side_lane},
};

impl Store {
    pub async fn cluster_settings(&self) -> Result<ClusterSettings, StoreError> {
        Ok(settings(&self.general().await?.query_one(Statement::ClusterSettings, &[]).await?))
    }

    /// Returns the cluster settings, and details of the closure if the store is closed to new jobs.
    pub async fn cluster_state(&self) -> Result<(ClusterSettings, Option<Closed>), StoreError> {
        let row = self.general().await?.query_one(Statement::ClusterSettings, &[]).await?;
        Ok((settings(&row), closed(&row)))
    }

    /// Closes the store to new jobs, and records the store name `name` with the closure. Returns the settings version,
    /// or `None` if the store was already closed.
    pub(crate) async fn close(&self, name: &str, by: &Actor) -> Result<Option<i64>, StoreError> {
        let change = |store: Self| async move {
            let mut transaction = store.begin_general().await?;
            let row = transaction.query_one(Statement::CloseStore, &[&name, &by.name()]).await?;
            finish(transaction, row.get("version"), name, by).await
        };
        retry_while_locked_in_side_lane(self, change).await
    }

    /// Opens the store to new jobs. Returns the settings version, or `None` if the store was already open.
    pub(crate) async fn reopen(&self, name: &str, by: &Actor) -> Result<Option<i64>, StoreError> {
        let change = |store: Self| async move {
            let mut transaction = store.begin_general().await?;
            let row = transaction.query_one(Statement::OpenStore, &[]).await?;
            finish(transaction, row.get("version"), name, by).await
        };
        retry_while_locked_in_side_lane(self, change).await
    }

    /// Whether the store has an unfinished job.
    pub(crate) async fn has_unfinished(&self) -> Result<bool, StoreError> {
        Ok(self.general().await?.query_one(Statement::HasUnfinished, &[]).await?.get(0))
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
            let before = SettingsBefore::read(transaction.connection(), SettingsBefore::CLUSTER, "").await?;
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
            Ok((settings(&row), row.get("version")))
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

fn settings(row: &Row) -> ClusterSettings {
    let number = |name: &str| usize::try_from(row.get::<_, i32>(name)).unwrap_or_default();
    let time = |name: &str| Duration::from_millis(u64::try_from(row.get::<_, i64>(name)).unwrap_or_default());
    ClusterSettings {
        payload_bytes: number("payload_bytes"),
        headers: number("headers"),
        header_bytes: number("header_bytes"),
        key_bytes: number("key_bytes"),
        batch: number("batch"),
        max_delay: time("max_delay_ms"),
        max_timeout: time("max_timeout_ms"),
        task_types: number("task_types"),
        dead_days: number("dead_days"),
    }
}
