//! `RevokeTokens`: revokes a token, or all tokens of a principal.

use howdah_proto::{
    Rpc,
    v1::{self, revoke_tokens_request::Selection},
};

use super::principal;
use crate::{
    access::{Operation, PRINCIPAL_BYTES, Rule, jwt},
    api::{
        check::text,
        verbs::{Answer, Call, Verb},
    },
    error::Error,
    job::{ClusterSettings, Limits},
    operate::RevokeQuery,
};

/// The call `RevokeTokens`.
pub(crate) struct RevokeTokens;

impl Verb for RevokeTokens {
    const RPC: Rpc = Rpc::RevokeTokens;
    const RULE: Rule = Rule::Everything(Operation::Admin);

    type Request = v1::RevokeTokensRequest;
    type Response = v1::RevokeTokensResponse;
    type Args = RevokeQuery;

    fn check(request: v1::RevokeTokensRequest, _: &ClusterSettings, _: &Limits) -> Result<RevokeQuery, Error> {
        match request.selection {
            Some(Selection::Id(id)) => {
                text::plain("id", &id, PRINCIPAL_BYTES)?;
                if id.starts_with(jwt::PRINCIPAL_BEGIN) {
                    return Ok(RevokeQuery::Jwt { name: id, of_principal: false });
                }
                Ok(RevokeQuery::Id(id))
            }
            Some(Selection::Principal(name)) if name.starts_with(jwt::PRINCIPAL_BEGIN) => {
                text::plain("principal", &name, PRINCIPAL_BYTES)?;
                Ok(RevokeQuery::Jwt { name, of_principal: true })
            }
            Some(Selection::Principal(name)) => {
                principal("principal", &name)?;
                Ok(RevokeQuery::Principal(name))
            }
            None => Err(Error::invalid("selection", "is not set; set id or principal")),
        }
    }

    async fn run(call: &mut Call, query: RevokeQuery) -> Result<v1::RevokeTokensResponse, Error> {
        let ids = call.broker.operator.revoke_tokens(&call.by()?, &query).await?;
        Ok(v1::RevokeTokensResponse { ids })
    }

    async fn route(call: &Call, request: v1::RevokeTokensRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_selection_is_refused() {
        let nothing = v1::RevokeTokensRequest { selection: None };
        let error = RevokeTokens::check(nothing, &ClusterSettings::DEFAULT, &Limits::default()).unwrap_err();
        assert_eq!(error.field(), Some("selection"));
    }
}
