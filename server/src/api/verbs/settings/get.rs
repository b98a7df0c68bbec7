//! `GetSettings`: the settings of the cluster, their defaults, and their bounds.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::Rule;
use howdah_proto::{Rpc, v1};

use crate::api::{
    render,
    verbs::{Answer, Call, Verb},
};

/// The call `GetSettings`.
pub(crate) struct GetSettings;

impl Verb for GetSettings {
    const RPC: Rpc = Rpc::GetSettings;
    // The call requires no permission, because every client must know the limits to stay within them.
    const RULE: Rule = Rule::Anyone;

    type Request = v1::GetSettingsRequest;
    type Response = v1::GetSettingsResponse;
    type Args = ();

    fn check(_: v1::GetSettingsRequest, _: &ClusterSettings, _: &Limits) -> Result<(), Error> {
        Ok(())
    }

    async fn run(call: &mut Call, (): ()) -> Result<v1::GetSettingsResponse, Error> {
        let settings = call.broker.operator.cluster_settings().await?;
        Ok(v1::GetSettingsResponse {
            settings: Some(render::cluster_settings(&settings)),
            defaults: Some(render::cluster_settings(&ClusterSettings::DEFAULT)),
            lowest: Some(render::cluster_settings(&ClusterSettings::LOWEST)),
            highest: Some(render::cluster_settings(&ClusterSettings::HIGHEST)),
        })
    }

    async fn route(call: &Call, request: v1::GetSettingsRequest) -> Answer<Self> {
        call.in_store::<Self>(call.named_or_primary()?, request).await
    }
}
