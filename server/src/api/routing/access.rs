//! `AccessService` for several stores. The primary store keeps the tokens, which are valid for all stores. Each store has its own
//! audit log.

use howdah_proto::v1;
use tonic::{Request, Response, Status};

use super::{RoutingService, Services};

howdah_proto::access_service!(RoutingService);

impl RoutingService {
    pub(super) async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        self.main().access().create_token(request).await
    }

    pub(super) async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        self.main().access().list_tokens(request).await
    }

    pub(super) async fn revoke_tokens(
        &self,
        request: Request<v1::RevokeTokensRequest>,
    ) -> Result<Response<v1::RevokeTokensResponse>, Status> {
        self.main().access().revoke_tokens(request).await
    }

    pub(super) async fn list_audit(
        &self,
        request: Request<v1::ListAuditRequest>,
    ) -> Result<Response<v1::ListAuditResponse>, Status> {
        let stores = self.concerned(request.metadata(), "").await?;
        let call = |store: Services, part| async move { store.access().list_audit(part).await };
        self.one_by_one(request, stores, call).await
    }
}
