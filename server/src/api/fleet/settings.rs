//! `SettingsService` of several stores: each has settings of its own. Without a store, the main one's are shown, and a change
//! reaches all.

use howdah_proto::v1::{self, settings_service_server::SettingsService};
use tonic::{Request, Response, Status, async_trait};

use super::{FleetService, Services};

#[async_trait]
impl SettingsService for FleetService {
    async fn get_settings(
        &self,
        request: Request<v1::GetSettingsRequest>,
    ) -> Result<Response<v1::GetSettingsResponse>, Status> {
        self.asked_or_main(request.metadata())?.settings().get_settings(request).await
    }

    async fn update_settings(
        &self,
        request: Request<v1::UpdateSettingsRequest>,
    ) -> Result<Response<v1::UpdateSettingsResponse>, Status> {
        let stores = self.concerned(request.metadata(), "").await?;
        let call = |store: Services, part| async move { store.settings().update_settings(part).await };
        self.change_each(request, stores, call).await
    }
}
