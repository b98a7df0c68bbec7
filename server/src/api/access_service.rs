//! `AccessService`: create, list and revoke tokens, and list the audit log.

use howdah_proto::{Rpc, v1};
use tonic::{Request, Response, Status};

use super::{actor::actor, answer, authenticate::caller, check, page_token, pages::Pages, render};
use crate::broker::SharedBroker;

/// Service for administrators. The rules of its calls require administrator rights.
pub(super) struct AccessService {
    broker: SharedBroker,
}

impl AccessService {
    pub(super) fn new(broker: SharedBroker) -> Self {
        Self { broker }
    }
}

howdah_proto::access_service!(AccessService);

impl AccessService {
    pub(super) async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let by = actor(&self.broker, &request, Rpc::CreateToken)?;
        let query = check::create_token(request.into_inner())?;
        let (token, view) = self.broker.operator.create_token(&by, &query).await?;
        Ok(Response::new(v1::CreateTokenResponse {
            secret: token.secret().to_owned(),
            token: Some(render::token(view)),
        }))
    }

    pub(super) async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        let caller = caller(&request)?;
        let mut request = request.into_inner();
        let pages = Pages::open(&self.broker.page_token_key, caller.principal(), &mut request)?;
        let (after, page_size) = check::list_tokens(&request)?;
        let tokens = self.broker.operator.list_tokens(&after, request.show_ended, page_size).await?;
        let last = tokens.last().filter(|_| tokens.len() >= page_size);
        let next_page_token = pages.seal(last.map(|last| page_token::encode_token_id(&last.id)));
        Ok(Response::new(v1::ListTokensResponse {
            tokens: tokens.into_iter().map(render::token).collect(),
            next_page_token,
        }))
    }

    pub(super) async fn revoke_tokens(
        &self,
        request: Request<v1::RevokeTokensRequest>,
    ) -> Result<Response<v1::RevokeTokensResponse>, Status> {
        let by = actor(&self.broker, &request, Rpc::RevokeTokens)?;
        let query = check::revoke_tokens(request.into_inner())?;
        let ids = self.broker.operator.revoke_tokens(&by, &query).await?;
        Ok(Response::new(v1::RevokeTokensResponse { ids }))
    }

    pub(super) async fn list_audit(
        &self,
        request: Request<v1::ListAuditRequest>,
    ) -> Result<Response<v1::ListAuditResponse>, Status> {
        let caller = caller(&request)?;
        let room = answer::room(&self.broker.answers, &request, answer::MEDIUM).await?;
        let mut request = request.into_inner();
        let pages = Pages::open(&self.broker.page_token_key, caller.principal(), &mut request)?;
        let query = check::list_audit(request)?;
        let entries = self.broker.operator.list_audit(&query).await?;
        let last = entries.last().filter(|_| entries.len() >= query.at_most as usize);
        let next_page_token = pages.seal(last.map(|last| page_token::encode_audit(last.time_us, last.id)));
        let entries: Vec<_> = entries.into_iter().map(render::audit_entry).collect();
        let length = entries.len();
        Ok(answer::with_room(v1::ListAuditResponse { entries, next_page_token }, length, room))
    }
}
