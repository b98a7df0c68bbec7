//! Calls for administrators: tokens and the audit log. The primary store holds the tokens of all stores. Each store has its own
//! audit log.

pub(crate) mod audit;
pub(crate) mod create_token;
mod list_tokens;
mod revoke_tokens;

pub(crate) use audit::ListAudit;
pub(crate) use create_token::CreateToken;
pub(crate) use list_tokens::ListTokens;
pub(crate) use revoke_tokens::RevokeTokens;

use howdah_core::error::Error;
use howdah_engine::{
    access::{PRINCIPAL_BYTES, check_principal},
    store::TokenView,
};
use howdah_proto::v1;

use crate::api::{check::text, render::time};

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
        create_time: Some(time(view.created)),
        expire_time: view.expires.map(time),
        revoke_time: view.revoked.map(time),
    }
}
