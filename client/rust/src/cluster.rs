//! Cluster settings, stores and workers.

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{change, pages, read},
};

impl Client {
    /// Gets the cluster settings, with their defaults and bounds.
    pub async fn get_settings(&self) -> Result<proto::GetSettingsResponse> {
        read!(self.cluster_settings().get_settings(proto::GetSettingsRequest {}))
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
        Ok(change!(self.cluster_settings().update_settings(request))?.settings.unwrap_or_default())
    }

    /// Lists the store with this name; with an empty name, all stores of the broker.
    pub async fn list_stores(&self, name: &str) -> Result<Vec<proto::Store>> {
        Ok(read!(self.stores().list_stores(proto::ListStoresRequest { store: name.to_owned() }))?.stores)
    }

    /// Closes a store to new jobs, and returns it. Its existing jobs continue.
    pub async fn drain_store(&self, name: &str) -> Result<proto::Store> {
        let request = proto::DrainStoreRequest { store: name.to_owned() };
        Ok(change!(self.stores().drain_store(request))?.store.unwrap_or_default())
    }

    /// Reopens a store to new jobs, and returns it.
    pub async fn open_store(&self, name: &str) -> Result<proto::Store> {
        let request = proto::OpenStoreRequest { store: name.to_owned() };
        Ok(change!(self.stores().open_store(request))?.store.unwrap_or_default())
    }

    /// Makes the broker read its configuration again, and add and remove stores accordingly.
    pub async fn reload_stores(&self) -> Result<proto::ReloadStoresResponse> {
        change!(self.stores().reload_stores(proto::ReloadStoresRequest {}))
    }

    /// Lists the workers of all brokers. Ignores `page_size` and `page_token` of the request: fetches all pages.
    pub async fn list_workers(&self, request: proto::ListWorkersRequest) -> Result<Vec<proto::Worker>> {
        pages!(self.workers().list_workers(request).workers)
    }

    /// One page of the workers of all brokers.
    pub async fn worker_page(&self, request: proto::ListWorkersRequest) -> Result<proto::ListWorkersResponse> {
        read!(self.workers().list_workers(request))
    }
}
