//! Settings of the cluster: limits that hold at every broker and for SQL functions.

use howdah_proto::v1 as proto;

use crate::{Client, Result, call::Tries};

impl Client {
    /// The settings of the cluster, with their defaults and bounds.
    pub async fn get_settings(&self) -> Result<proto::GetSettingsResponse> {
        self.call("get settings", Tries::EachEndpoint, proto::GetSettingsRequest {}, |client, request| async move {
            client.cluster_settings().get_settings(request).await
        })
        .await
    }

    /// Changes settings of the cluster: those that are set here. Returns all of them.
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

    /// Sets settings of the cluster back to their defaults, by their names, such as `payload_bytes`. Returns all of them.
    pub async fn reset_settings(
        &self,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<proto::ClusterSettings> {
        let update_mask = prost_types::FieldMask { paths: names.into_iter().map(Into::into).collect() };
        self.update_masked(proto::UpdateSettingsRequest { settings: None, update_mask: Some(update_mask) }).await
    }

    async fn update_masked(&self, request: proto::UpdateSettingsRequest) -> Result<proto::ClusterSettings> {
        let response = self
            .call("update settings", Tries::EachEndpoint, request, |client, request| async move {
                client.cluster_settings().update_settings(request).await
            })
            .await?;
        Ok(response.settings.unwrap_or_default())
    }
}
