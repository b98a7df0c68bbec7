//! `CreateToken`: creates a token for a principal.

use std::{ops::RangeInclusive, time::Duration};

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::{self, MAX_SCOPES, Operation, Rule, Scope, TokenQuery};
use howdah_proto::{Rpc, v1};

use super::{principal, token};
use crate::api::{
    check::{numbers, text, time},
    verbs::{Answer, Call, Verb},
};

/// Allowed range of a token's lifetime: 1 second to 100 years.
pub(crate) const LIFETIME: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(36_500 * 24);

/// The call `CreateToken`.
pub(crate) struct CreateToken;

impl Verb for CreateToken {
    const RPC: Rpc = Rpc::CreateToken;
    const RULE: Rule = Rule::Everything(Operation::Admin);

    type Request = v1::CreateTokenRequest;
    type Response = v1::CreateTokenResponse;
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
}
