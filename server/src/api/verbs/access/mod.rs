//! Calls for administrators: tokens and the audit log. The primary store holds the tokens of all stores. Each store has its own
//! audit log.

use std::{ops::RangeInclusive, time::Duration};

use howdah_engine::{
    access::{self, JWT_PRINCIPAL, MAX_SCOPES, PRINCIPAL_BYTES, Scope, TokenQuery, check_principal},
    store::{MOST_TOKENS, TokenView},
};
use howdah_proto::v1::revoke_tokens_request::Selection;

use crate::api::verbs::prelude::*;

pub(crate) mod audit;

fn principal(field: &str, name: &str) -> Result<(), Error> {
    text::short(field, name, PRINCIPAL_BYTES)?;
    check_principal(name).map_err(|problem| Error::invalid(field, problem))
}

/// Converts a token, without its secret part.
fn token(view: TokenView) -> v1::Token {
    v1::Token {
        id: view.id,
        principal: view.principal,
        scopes: view.scopes,
        created_by: view.created_by,
        create_time: Some(render::time(view.created)),
        expire_time: view.expires.map(render::time),
        revoke_time: view.revoked.map(render::time),
    }
}

/// Allowed range of a token's lifetime: 1 second to 100 years.
pub(crate) const LIFETIME: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(36_500 * 24);

impl Verb for CreateToken {
    const RULE: Rule = Rule::Everything(Operation::Admin);

    type Args = TokenQuery;

    fn check(request: v1::CreateTokenRequest, _: &ClusterSettings, _: &Limits) -> Result<TokenQuery, Error> {
        principal("principal", &request.principal)?;
        numbers::entries("scopes", request.scopes.len(), 1..=MAX_SCOPES)?;
        let scope = |(i, scope): (usize, &String)| {
            text::short(&format!("scopes[{i}]"), scope, 300)?;
            Scope::parse(scope).map_err(|problem| Error::invalid(format!("scopes[{i}]"), problem))
        };
        Ok(TokenQuery {
            scopes: request.scopes.iter().enumerate().map(scope).collect::<Result<_, _>>()?,
            lifetime: request.lifetime.map(|given| time::duration("lifetime", given, &LIFETIME)).transpose()?,
            principal: request.principal,
        })
    }

    async fn run(call: &mut Call, query: TokenQuery) -> Result<v1::CreateTokenResponse, Error> {
        let (made, view) = access::create_token(call.broker.store(), &call.by()?, &query).await?;
        // The token is valid at this broker immediately, and at other brokers within a second.
        call.all_stores.authenticator().reload().await?;
        Ok(v1::CreateTokenResponse { secret: made.secret().to_owned(), token: Some(token(view)) })
    }

    async fn route(call: &Call, request: v1::CreateTokenRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}

const PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

impl Verb for ListTokens {
    const RULE: Rule = Rule::Everything(Operation::Admin);
    const READS: bool = true;

    /// Checked request: the last id of the previous page, whether to list ended tokens, and the page size.
    type Args = (String, bool, usize);

    paged!(tokens, page_size);

    fn check(request: v1::ListTokensRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let after = page_token::name(&request.page_token)?;
        Ok((after, request.show_ended, numbers::page_size(request.page_size, PAGE, MAX_PAGE)?))
    }

    async fn run(call: &mut Call, (after, show_ended, size): Self::Args) -> Result<v1::ListTokensResponse, Error> {
        let tokens = call.broker.operator.list_tokens(&after, show_ended, size).await?;
        let last = tokens.last().filter(|_| tokens.len() >= size);
        Ok(v1::ListTokensResponse {
            next_page_token: last.map(|last| page_token::encode_name(&last.id)).unwrap_or_default(),
            tokens: tokens.into_iter().map(token).collect(),
        })
    }

    async fn route(call: &Call, request: v1::ListTokensRequest) -> Answer<Self> {
        call.primary::<Self>(request).await
    }
}

/// Time for which a revocation of JSON Web Tokens is kept, in addition to their maximum lifetime. An operator may raise that
/// lifetime after the revocation.
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

impl Verb for RevokeTokens {
    const RULE: Rule = Rule::Everything(Operation::Admin);

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
                some(ids, || format!("there is no token {id:?} that has not been revoked"))?
            }
            RevokeQuery::Principal(principal) => {
                let ids = call.broker.store().revoke_tokens(None, Some(principal), &call.by()?).await?;
                some(ids, || format!("the principal {principal:?} has no token that has not been revoked"))?
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
    fn the_error_names_the_invalid_field_of_a_new_token() {
        let check = |request| CreateToken::check(request, &ClusterSettings::DEFAULT, &Limits::default());
        let good = || v1::CreateTokenRequest {
            principal: "mailer".into(),
            scopes: vec!["enqueue:mail.*".into()],
            lifetime: None,
        };
        assert!(check(good()).is_ok());
        for (request, field) in [
            (v1::CreateTokenRequest { principal: String::new(), ..good() }, "principal"),
            (v1::CreateTokenRequest { principal: "a b".into(), ..good() }, "principal"),
            (v1::CreateTokenRequest { principal: "a\u{1f}b".into(), ..good() }, "principal"),
            (v1::CreateTokenRequest { principal: "x".repeat(201), ..good() }, "principal"),
            (v1::CreateTokenRequest { scopes: vec![], ..good() }, "scopes"),
            (v1::CreateTokenRequest { scopes: vec!["read:a".into(), "all".into()], ..good() }, "scopes[1]"),
            (v1::CreateTokenRequest { lifetime: Some(prost_types::Duration::default()), ..good() }, "lifetime"),
        ] {
            assert_eq!(check(request.clone()).unwrap_err().field(), Some(field), "{request:?}");
        }
    }

    #[test]
    fn a_request_without_a_selection_is_refused() {
        let nothing = v1::RevokeTokensRequest { selection: None };
        let error = RevokeTokens::check(nothing, &ClusterSettings::DEFAULT, &Limits::default()).unwrap_err();
        assert_eq!(error.field(), Some("selection"));
    }
}
