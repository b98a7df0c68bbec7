//! The settings of the cluster: one row.

use std::time::Duration;

use tokio_postgres::Row;

use super::{Actor, Statement, Store, StoreError, audit::Change, transaction::until_unlocked};
use crate::job::{ClusterSettings, ClusterSettingsChange};

impl Store {
    /// The settings of the cluster.
    pub async fn cluster_settings(&self) -> Result<ClusterSettings, StoreError> {
        Ok(settings(&self.general().await?.query_one(Statement::ClusterSettings, &[]).await?))
    }

    /// Changes settings of the cluster. Returns all of them, and the version of all settings.
    pub async fn update_cluster_settings(
        &self,
        change: &ClusterSettingsChange,
        by: &Actor,
    ) -> Result<(ClusterSettings, i64), StoreError> {
        let number = |value: Option<usize>| value.map(|value| i32::try_from(value).unwrap_or(i32::MAX));
        let ms = |value: Option<Duration>| value.map(|value| i64::try_from(value.as_millis()).unwrap_or(i64::MAX));
        let update = |store: Self| async move {
            let mut transaction = store.begin().await?;
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
                    ],
                )
                .await?;
            transaction.record(by, &Change { count: 1, ..Change::default() }).await?;
            transaction.commit().await?;
            Ok((settings(&row), row.get("version")))
        };
        until_unlocked(self, update).await
    }
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
    }
}
