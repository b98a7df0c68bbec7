//! `SettingsService`: reads and changes the cluster settings.

use howdah_proto::{Rpc, v1};
use tonic::{Request, Response, Status};

use super::{actor::actor, check, render};
use crate::{broker::SharedBroker, job::ClusterSettings};

/// Service for operators.
pub(super) struct SettingsService {
    broker: SharedBroker,
}

impl SettingsService {
    pub(super) fn new(broker: SharedBroker) -> Self {
        Self { broker }
    }
}

howdah_proto::settings_service!(SettingsService);

impl SettingsService {
    pub(super) async fn get_settings(
        &self,
        _: Request<v1::GetSettingsRequest>,
    ) -> Result<Response<v1::GetSettingsResponse>, Status> {
        let settings = self.broker.operator.cluster_settings().await?;
        Ok(Response::new(v1::GetSettingsResponse {
            settings: Some(render::cluster_settings(&settings)),
            defaults: Some(render::cluster_settings(&ClusterSettings::DEFAULT)),
            lowest: Some(render::cluster_settings(&ClusterSettings::LOWEST)),
            highest: Some(render::cluster_settings(&ClusterSettings::HIGHEST)),
        }))
    }

    pub(super) async fn update_settings(
        &self,
        request: Request<v1::UpdateSettingsRequest>,
    ) -> Result<Response<v1::UpdateSettingsResponse>, Status> {
        let by = actor(&self.broker, &request, Rpc::UpdateSettings)?;
        let change = check::update_settings(request.get_ref())?;
        let settings = self.broker.operator.update_cluster_settings(&change, &by).await?;
        Ok(Response::new(v1::UpdateSettingsResponse { settings: Some(render::cluster_settings(&settings)) }))
    }
}
