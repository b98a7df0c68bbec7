//! Tokens, without their secret part.

use howdah_proto::v1;

use super::time::time;
use crate::store::TokenView;

/// Converts a token.
pub(crate) fn token(view: TokenView) -> v1::Token {
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
