//! `ReloadStores`: adds and removes stores of this broker, as its configuration now says.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use crate::{
    api::verbs::{Answer, Call, Verb},
    stores::Reloaded,
};

/// The call `ReloadStores`.
pub(crate) struct ReloadStores;

impl Verb for ReloadStores {
    const RPC: Rpc = Rpc::ReloadStores;
    const RULE: Rule = Rule::Everything(Operation::Admin);

    type Request = v1::ReloadStoresRequest;
    type Response = v1::ReloadStoresResponse;
    type Args = ();

    fn check(_: v1::ReloadStoresRequest, _: &ClusterSettings, _: &Limits) -> Result<(), Error> {
        Ok(())
    }

    async fn run(call: &mut Call, (): ()) -> Result<v1::ReloadStoresResponse, Error> {
        let by = call.by()?;
        let stores = call.all_stores.clone();
        // The reload goes on if the caller gives up.
        let reloaded = tokio::spawn(async move { stores.reload().await }).await;
        let reloaded =
            reloaded.map_err(|error| Error::Internal(format!("the reload of the stores failed: {error}")))?;
        let reloaded = reloaded.map_err(|error| Error::StoresRefused(error.to_string()))?;
        let names = reloaded.added.iter().chain(&reloaded.removed).cloned().collect();
        call.broker.operator.record_reload(names, &by).await?;
        let Reloaded { added, removed, changed, skipped } = reloaded;
        Ok(v1::ReloadStoresResponse { added, removed, changed, skipped })
    }

    async fn route(call: &Call, request: v1::ReloadStoresRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}
