//! Makes tokens, for a broker or for the command line.

use std::time::Duration;

use super::{Scope, Token};
use crate::{
    error::Error,
    store::{Actor, MOST_TOKENS, NewToken, Store, TokenView},
};

/// A token to make.
#[derive(Clone, Debug)]
pub struct TokenQuery {
    /// Whose it is.
    pub principal: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// How long it holds; `None`: until it is revoked.
    pub lifetime: Option<Duration>,
}

/// Makes a token and stores its hash. `by`: who asks for it.
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
        Error::TooMany(format!("there are {MOST_TOKENS} tokens already; revoke those that are not needed"))
    })?;
    Ok((token, view))
}
