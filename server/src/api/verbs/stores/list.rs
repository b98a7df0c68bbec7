//! `ListStores`: the stores of this broker, with their states and job counts.

use std::sync::Arc;

use futures::future::join_all;
use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{named, skipped, state};
use crate::{
    api::verbs::{Answer, Call, Verb},
    stores::ConfiguredStore,
};

/// The call `ListStores`.
pub(crate) struct ListStores;

impl Verb for ListStores {
    const RPC: Rpc = Rpc::ListStores;
    const RULE: Rule = Rule::Everything(Operation::Read);

    type Request = v1::ListStoresRequest;
    type Response = v1::ListStoresResponse;
    /// Name of a store; empty for all stores.
    type Args = String;

    fn check(request: v1::ListStoresRequest, _: &ClusterSettings, _: &Limits) -> Result<String, Error> {
        Ok(request.store)
    }

    async fn run(call: &mut Call, name: String) -> Result<v1::ListStoresResponse, Error> {
        let mut left_out = call.all_stores.skipped();
        left_out.retain(|store| name.is_empty() || store.name == name);
        let stores: Vec<&ConfiguredStore> = if name.is_empty() {
            call.stores.all().iter().map(Arc::as_ref).collect()
        } else if left_out.is_empty() {
            vec![named(call, &name)?]
        } else {
            Vec::new()
        };
        let served = join_all(stores.into_iter().map(state)).await;
        Ok(v1::ListStoresResponse { stores: served.into_iter().chain(left_out.into_iter().map(skipped)).collect() })
    }

    async fn route(call: &Call, request: v1::ListStoresRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}
