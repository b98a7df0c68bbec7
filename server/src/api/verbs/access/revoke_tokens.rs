//! `RevokeTokens`: revokes a token, or all tokens of a principal.

use std::time::Duration;

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::{
    access::{JWT_PRINCIPAL, Operation, PRINCIPAL_BYTES, Rule},
    store::MOST_TOKENS,
};
use howdah_proto::{
    Rpc,
    v1::{self, revoke_tokens_request::Selection},
};

use super::principal;
use crate::api::{
    check::text,
    verbs::{Answer, Call, Verb},
};

/// Time that revocations of JSON Web Tokens are kept after the current maximum lifetime of tokens, which may be raised
/// meanwhile.
const KEPT: Duration = Duration::from_hours(30 * 24);

/// Tokens to revoke.
#[derive(Clone, Debug)]
pub(crate) enum RevokeQuery {
    /// A token by its id.
    Id(String),
    /// All tokens of a principal.
    Principal(String),
    /// A JSON Web Token, or all JSON Web Tokens of a principal that were issued until now.
    Jwt { name: String, of_principal: bool },
}

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
                if id.starts_with(JWT_PRINCIPAL) {
                    return Ok(RevokeQuery::Jwt { name: id, of_principal: false });
                }
                Ok(RevokeQuery::Id(id))
            }
            Some(Selection::Principal(name)) if name.starts_with(JWT_PRINCIPAL) => {
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
        let ids = match &query {
            RevokeQuery::Jwt { name, of_principal } => revoke_jwt(call, name, *of_principal).await?,
            RevokeQuery::Id(id) => {
                let ids = call.broker.store().revoke_tokens(Some(id), None, &call.by()?).await?;
                some(ids, || format!("there is no valid token {id:?}"))?
            }
            RevokeQuery::Principal(principal) => {
                let ids = call.broker.store().revoke_tokens(None, Some(principal), &call.by()?).await?;
                some(ids, || format!("the principal {principal:?} has no valid token"))?
            }
        };
        call.all_stores.authenticator().reload().await?;
        Ok(v1::RevokeTokensResponse { ids })
    }

    async fn route(call: &Call, request: v1::RevokeTokensRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}

fn some(ids: Vec<String>, problem: impl FnOnce() -> String) -> Result<Vec<String>, Error> {
    if ids.is_empty() { Err(Error::NotFound(problem())) } else { Ok(ids) }
}

async fn revoke_jwt(call: &Call, name: &str, of_principal: bool) -> Result<Vec<String>, Error> {
    let lifetime = call.all_stores.authenticator().jwt_lifetime(name).ok_or_else(|| {
        Error::NotFound(format!(
            "{name:?} has no issuer that this broker knows; write a JSON Web Token as jwt:ISSUER:JTI, a principal as \
             jwt:ISSUER:SUBJECT"
        ))
    })?;
    if !call.broker.store().revoke_jwt(name, of_principal, lifetime + KEPT, &call.by()?).await? {
        return Err(Error::TooMany(format!(
            "{MOST_TOKENS} JSON Web Tokens and principals are already revoked; remove a key of the issuer instead"
        )));
    }
    Ok(vec![name.to_owned()])
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
