//! Tokens of callers, and the audit log.

use std::time::Duration;

use howdah_proto::v1::{self as proto, revoke_tokens_request::Selection};

use crate::{
    Client, Result,
    call::{change, pages},
    time,
};

impl Client {
    /// Creates a token for a principal, with scopes such as `enqueue:mail.*`. Without a lifetime it is valid until it is revoked.
    /// The response contains the secret, which cannot be read again. If the response is lost, the call is not repeated: find the
    /// token with [`list_tokens`](Self::list_tokens), and revoke it.
    pub async fn create_token(
        &self,
        principal: impl Into<String>,
        scopes: impl IntoIterator<Item = impl Into<String>>,
        lifetime: Option<Duration>,
    ) -> Result<proto::CreateTokenResponse> {
        let request = proto::CreateTokenRequest {
            principal: principal.into(),
            scopes: scopes.into_iter().map(Into::into).collect(),
            lifetime: lifetime.map(time::to_proto),
        };
        // The call is sent once. If its response were lost, a repeat would create a second token, and the secret of the first
        // one would never be known.
        change!(self.access().create_token(request), Once)
    }

    /// Lists all valid tokens; with `ended`, also revoked and expired ones.
    pub async fn list_tokens(&self, ended: bool) -> Result<Vec<proto::Token>> {
        let request = proto::ListTokensRequest { show_ended: ended, ..Default::default() };
        pages!(self.access().list_tokens(request).tokens)
    }

    /// Revokes a token by its id. Returns the ids of the revoked tokens.
    pub async fn revoke_token(&self, id: impl Into<String>) -> Result<Vec<String>> {
        self.revoke(Selection::Id(id.into())).await
    }

    /// Revokes all tokens of a principal. Returns their ids.
    pub async fn revoke_tokens_of(&self, principal: impl Into<String>) -> Result<Vec<String>> {
        self.revoke(Selection::Principal(principal.into())).await
    }

    /// Lists audit entries, newest first. Ignores `page_size` and `page_token` of the request: fetches up to `at_most` entries,
    /// in as many pages as needed.
    pub async fn list_audit(&self, request: proto::ListAuditRequest, at_most: usize) -> Result<Vec<proto::AuditEntry>> {
        pages!(self.access().list_audit(request).entries, at_most)
    }

    async fn revoke(&self, selection: Selection) -> Result<Vec<String>> {
        Ok(change!(self.access().revoke_tokens(proto::RevokeTokensRequest { selection: Some(selection) }))?.ids)
    }
}
