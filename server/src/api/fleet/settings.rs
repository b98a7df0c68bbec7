//! `SettingsService` of several stores: each has settings of its own. Without a store, the main one's are shown, and a change
//! reaches all.

use howdah_proto::v1;
use tonic::{Request, Response, Status};

use super::{FleetService, Services};

howdah_proto::settings_service!(FleetService);

impl FleetService {
    pub(super) async fn get_settings(
        &self,
        request: Request<v1::GetSettingsRequest>,
    ) -> Result<Response<v1::GetSettingsResponse>, Status> {
        self.asked_or_main(request.metadata())?.settings().get_settings(request).await
    }

    pub(super) async fn update_settings(
        &self,
        request: Request<v1::UpdateSettingsRequest>,
    ) -> Result<Response<v1::UpdateSettingsResponse>, Status> {
        let stores = self.concerned(request.metadata(), "").await?;
        let call = |store: Services, part| async move { store.settings().update_settings(part).await };
        self.change_each(request, stores, call).await
    }
}
