//! Tokens of callers: make, list, revoke. The audit. And the task types of jobs, by which calls are permitted.

use std::time::Duration;

use super::Operator;
use crate::{
    access::{self, Token, TokenQuery},
    error::Error,
    job::TypeId,
    store::{Actor, AuditEntry, AuditQuery, MOST_TOKENS, TokenView},
};

/// How long what is revoked is kept after tokens of today have expired: the longest lifetime may be raised meanwhile.
const KEPT: Duration = Duration::from_hours(30 * 24);

/// The tokens to revoke.
#[derive(Clone, Debug)]
pub(crate) enum RevokeQuery {
    /// One, by its id.
    Id(String),
    /// All of a principal.
    Principal(String),
    /// A JSON Web Token, or all of a principal that were issued until now.
    Jwt { name: String, of_principal: bool },
}

impl Operator {
    /// The task types of jobs, by number and by name; jobs that do not exist are left out.
    pub(crate) async fn types_of(&self, ids: &[i64]) -> Result<Vec<(i64, TypeId, String)>, Error> {
        Ok(self.context.store.types_of(ids).await?)
    }

    /// Makes a token. It holds here at once, and at other brokers within a second.
    pub(crate) async fn create_token(&self, by: &Actor, query: &TokenQuery) -> Result<(Token, TokenView), Error> {
        let made = access::create_token(&self.context.store, by, query).await?;
        self.context.access.reload().await?;
        Ok(made)
    }

    /// A page of tokens after this id.
    pub(crate) async fn list_tokens(&self, after: &str, ended: bool, size: usize) -> Result<Vec<TokenView>, Error> {
        Ok(self.context.store.list_tokens(after, ended, size as i32).await?)
    }

    /// A page of the audit.
    pub(crate) async fn list_audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.context.store.list_audit(query).await?)
    }

    /// Revokes tokens; returns their ids.
    pub(crate) async fn revoke_tokens(&self, by: &Actor, query: &RevokeQuery) -> Result<Vec<String>, Error> {
        let (id, principal) = match query {
            RevokeQuery::Jwt { name, of_principal } => {
                self.revoke_jwt(name, *of_principal, by).await?;
                return Ok(vec![name.clone()]);
            }
            RevokeQuery::Id(id) => (Some(id.as_str()), None),
            RevokeQuery::Principal(principal) => (None, Some(principal.as_str())),
        };
        let ids = self.context.store.revoke_tokens(id, principal, by).await?;
        if ids.is_empty() {
            let problem = id.map_or_else(
                || format!("the principal {:?} has no token that holds", principal.unwrap_or_default()),
                |id| format!("there is no token {id:?} that holds"),
            );
            return Err(Error::NotFound(problem));
        }
        self.context.access.reload().await?;
        Ok(ids)
    }

    async fn revoke_jwt(&self, name: &str, of_principal: bool, by: &Actor) -> Result<(), Error> {
        let lifetime = self.context.access.jwt_lifetime(name).ok_or_else(|| {
            Error::NotFound(format!(
                "{name:?} names no issuer of JSON Web Tokens that this broker knows; a token is jwt:ISSUER:JTI, a principal \
                 jwt:ISSUER:SUBJECT"
            ))
        })?;
        if !self.context.store.revoke_jwt(name, of_principal, lifetime + KEPT, by).await? {
            return Err(Error::TooMany(format!(
                "{MOST_TOKENS} JSON Web Tokens and principals are revoked already; remove a key of the issuer instead"
            )));
        }
        Ok(self.context.access.reload().await?)
    }
}
