//! Checks of requests to create, list and revoke tokens.

use std::{ops::RangeInclusive, time::Duration};

use howdah_proto::v1::{self, revoke_tokens_request::Selection};

use super::{numbers, text, time};
use crate::{
    access::{MAX_SCOPES, PRINCIPAL_BYTES, Scope, TokenQuery, check_principal, jwt},
    api::page_token,
    error::Error,
    operate::RevokeQuery,
};

pub(crate) const PAGE: usize = 100;
pub(crate) const MAX_PAGE: usize = 1000;
/// Allowed lifetime of a token: 1 second to 100 years.
pub(crate) const LIFETIME: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(36_500 * 24);

/// Checks a request to create a token.
pub(crate) fn create_token(request: v1::CreateTokenRequest) -> Result<TokenQuery, Error> {
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

/// Returns the last id of the previous page, and the page size.
pub(crate) fn list_tokens(request: &v1::ListTokensRequest) -> Result<(String, usize), Error> {
    let after = page_token::token_id(&request.page_token)?;
    Ok((after, numbers::page_size(request.page_size, PAGE, MAX_PAGE)?))
}

/// Checks a request to revoke tokens.
pub(crate) fn revoke_tokens(request: v1::RevokeTokensRequest) -> Result<RevokeQuery, Error> {
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

fn principal(field: &str, name: &str) -> Result<(), Error> {
    text::short(field, name, PRINCIPAL_BYTES)?;
    check_principal(name).map_err(|problem| Error::invalid(field, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_to_make_is_refused_by_its_field() {
        let good = || v1::CreateTokenRequest {
            principal: "mailer".into(),
            scopes: vec!["enqueue:mail.*".into()],
            lifetime: None,
        };
        assert!(create_token(good()).is_ok());
        for (request, field) in [
            (v1::CreateTokenRequest { principal: String::new(), ..good() }, "principal"),
            (v1::CreateTokenRequest { principal: "a b".into(), ..good() }, "principal"),
            (v1::CreateTokenRequest { principal: "a\u{1f}b".into(), ..good() }, "principal"),
            (v1::CreateTokenRequest { principal: "x".repeat(201), ..good() }, "principal"),
            (v1::CreateTokenRequest { scopes: vec![], ..good() }, "scopes"),
            (v1::CreateTokenRequest { scopes: vec!["read:a".into(), "all".into()], ..good() }, "scopes[1]"),
            (v1::CreateTokenRequest { lifetime: Some(prost_types::Duration::default()), ..good() }, "lifetime"),
        ] {
            assert_eq!(create_token(request.clone()).unwrap_err().field(), Some(field), "{request:?}");
        }
        let nothing = v1::RevokeTokensRequest { selection: None };
        assert_eq!(revoke_tokens(nothing).unwrap_err().field(), Some("selection"));
    }
}
