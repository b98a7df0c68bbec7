//! `DrainStore` and `OpenStore`: close a store to new jobs, and open it again.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{named, state};
use crate::api::verbs::{Answer, Call, Verb};

/// The call `DrainStore`.
pub(crate) struct DrainStore;

impl Verb for DrainStore {
    const RPC: Rpc = Rpc::DrainStore;
    const RULE: Rule = Rule::Everything(Operation::Admin);

    type Request = v1::DrainStoreRequest;
    type Response = v1::DrainStoreResponse;
    /// Name of the store.
    type Args = String;

    fn check(request: v1::DrainStoreRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        Ok(request.store)
    }

    async fn run(call: &mut Call, name: String) -> Result<v1::DrainStoreResponse, Error> {
        let store = named(call, &name)?;
        let broker = store.reachable()?.reachable()?;
        broker.operator.close_store(store.name(), &call.at(broker).by()?).await?;
        Ok(v1::DrainStoreResponse { store: Some(state(store).await) })
    }

    async fn route(call: &Call, request: v1::DrainStoreRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}

/// The call `OpenStore`.
pub(crate) struct OpenStore;

impl Verb for OpenStore {
    const RPC: Rpc = Rpc::OpenStore;
    const RULE: Rule = Rule::Everything(Operation::Admin);

    type Request = v1::OpenStoreRequest;
    type Response = v1::OpenStoreResponse;
    /// Name of the store.
    type Args = String;

    fn check(request: v1::OpenStoreRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        Ok(request.store)
    }

    async fn run(call: &mut Call, name: String) -> Result<v1::OpenStoreResponse, Error> {
        let store = named(call, &name)?;
        let broker = store.reachable()?.reachable()?;
        broker.operator.open_store(store.name(), &call.at(broker).by()?).await?;
        Ok(v1::OpenStoreResponse { store: Some(state(store).await) })
    }

    async fn route(call: &Call, request: v1::OpenStoreRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}
