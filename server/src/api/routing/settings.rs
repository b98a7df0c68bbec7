//! `SettingsService` for several stores. Each store has its own settings. A call that names no store reads the primary store's
//! settings, and changes the settings of all stores.

use howdah_proto::v1;
use tonic::{Request, Response, Status};

use super::{RoutingService, Services};

howdah_proto::settings_service!(RoutingService);

impl RoutingService {
    pub(super) async fn get_settings(
        &self,
        request: Request<v1::GetSettingsRequest>,
    ) -> Result<Response<v1::GetSettingsResponse>, Status> {
        self.named_or_main(request.metadata())?.settings().get_settings(request).await
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
