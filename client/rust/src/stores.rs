//! The stores of a broker: its databases.

use howdah_proto::v1 as proto;

use crate::{Client, Result, call::rpc};

impl Client {
    /// Lists the store with this name; with an empty name, all stores of the broker.
    pub async fn list_stores(&self, name: &str) -> Result<Vec<proto::Store>> {
        Ok(rpc!(self.stores().list_stores(proto::ListStoresRequest { store: name.to_owned() }))?.stores)
    }

    /// Closes a store to new jobs, and returns it. Its existing jobs continue.
    pub async fn drain_store(&self, name: &str) -> Result<proto::Store> {
        Ok(rpc!(self.stores().drain_store(proto::DrainStoreRequest { store: name.to_owned() }))?
            .store
            .unwrap_or_default())
    }

    /// Makes the broker read its configuration again, and add and remove stores accordingly.
    pub async fn reload_stores(&self) -> Result<proto::ReloadStoresResponse> {
        rpc!(self.stores().reload_stores(proto::ReloadStoresRequest {}))
    }

    /// Reopens a store to new jobs, and returns it.
    pub async fn open_store(&self, name: &str) -> Result<proto::Store> {
        Ok(rpc!(self.stores().open_store(proto::OpenStoreRequest { store: name.to_owned() }))?
            .store
            .unwrap_or_default())
    }
}
