//! Cluster settings.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, ClusterSettingsChange},
};

use super::Operator;
use crate::store::Actor;

impl Operator {
    /// Reads the stored cluster settings.
    pub async fn cluster_settings(&self) -> Result<ClusterSettings, Error> {
        Ok(self.context.store.cluster_settings().await?)
    }

    /// Changes cluster settings. Returns all settings after the change.
    pub async fn update_cluster_settings(
        &self,
        change: &ClusterSettingsChange,
        by: &Actor,
    ) -> Result<ClusterSettings, Error> {
        let (settings, version) = self.context.store.update_cluster_settings(change, by).await?;
        tracing::info!(?settings, "the cluster settings have changed");
        self.context.settings_changed(version).await;
        Ok(settings)
    }
}
