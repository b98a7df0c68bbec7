//! Cluster settings: limits that apply at every broker and to SQL functions.

use howdah_proto::v1 as proto;

use crate::{Client, Result, call::rpc};

impl Client {
    /// Gets the cluster settings, with their defaults and bounds.
    pub async fn get_settings(&self) -> Result<proto::GetSettingsResponse> {
        rpc!(self.cluster_settings().get_settings(proto::GetSettingsRequest {}))
    }

    /// Changes the cluster settings that are set in `settings`. Returns all settings.
    ///
    /// ```no_run
    /// # async fn f(client: howdah_client::Client) -> howdah_client::Result<()> {
    /// use howdah_client::proto::ClusterSettings;
    /// client.update_settings(ClusterSettings { payload_bytes: 2 << 20, ..Default::default() }).await?;
    /// # Ok(()) }
    /// ```
    pub async fn update_settings(&self, settings: proto::ClusterSettings) -> Result<proto::ClusterSettings> {
        self.update_masked(proto::UpdateSettingsRequest { settings: Some(settings), update_mask: None }).await
    }

    /// Resets cluster settings to their defaults, by their names, such as `payload_bytes`. Returns all settings.
    pub async fn reset_settings(
        &self,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<proto::ClusterSettings> {
        let update_mask = prost_types::FieldMask { paths: names.into_iter().map(Into::into).collect() };
        self.update_masked(proto::UpdateSettingsRequest { settings: None, update_mask: Some(update_mask) }).await
    }

    async fn update_masked(&self, request: proto::UpdateSettingsRequest) -> Result<proto::ClusterSettings> {
        Ok(rpc!(self.cluster_settings().update_settings(request))?.settings.unwrap_or_default())
    }
}
