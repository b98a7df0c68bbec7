//! Creates tokens, for brokers and for the command line.

use std::time::Duration;

use howdah_core::error::Error;

use super::{Scope, Token};
use crate::store::{Actor, MOST_TOKENS, NewToken, Store, TokenView};

/// A token to create.
#[derive(Clone, Debug)]
pub struct TokenQuery {
    /// The principal that the token authenticates.
    pub principal: String,
    pub scopes: Vec<Scope>,
    /// Time until the token expires. `None` for a token that never expires.
    pub lifetime: Option<Duration>,
}

/// Creates a token and stores its hash. `by` is the actor in the audit log.
pub async fn create_token(store: &Store, by: &Actor, query: &TokenQuery) -> Result<(Token, TokenView), Error> {
    let token = Token::generate();
    let scopes: Vec<String> = query.scopes.iter().map(ToString::to_string).collect();
    let new = NewToken {
        id: token.id(),
        hash: &token.hash(),
        principal: &query.principal,
        scopes: &scopes,
        created_by: by.principal.as_deref().unwrap_or_default(),
        lifetime: query.lifetime,
    };
    let view = store.create_token(new, by).await?.ok_or_else(|| {
        Error::TooMany(format!("there are {MOST_TOKENS} tokens already; revoke tokens that are not needed"))
    })?;
    Ok((token, view))
}
