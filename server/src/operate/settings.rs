//! The settings of the cluster.

use super::Operator;
use crate::{
    error::Error,
    job::{ClusterSettings, ClusterSettingsChange},
    store::Actor,
};

impl Operator {
    /// The settings of the cluster, as they are stored.
    pub async fn cluster_settings(&self) -> Result<ClusterSettings, Error> {
        Ok(self.context.store.cluster_settings().await?)
    }

    /// Changes settings of the cluster; all of them as they are now.
    pub async fn update_cluster_settings(
        &self,
        change: &ClusterSettingsChange,
        by: &Actor,
    ) -> Result<ClusterSettings, Error> {
        let (settings, version) = self.context.store.update_cluster_settings(change, by).await?;
        tracing::info!(?settings, "the settings of the cluster were changed");
        self.context.settings_changed(version).await;
        Ok(settings)
    }
}
