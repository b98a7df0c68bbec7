//! Tokens of callers (create, list, revoke), the audit log, and the task types of jobs for permission checks.

use std::time::Duration;

use super::Operator;
use crate::{
    access::{self, Token, TokenQuery},
    error::Error,
    job::TypeId,
    store::{Actor, AuditEntry, AuditQuery, MOST_TOKENS, TokenView},
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

impl Operator {
    /// Returns the task types of jobs, each with its id and name. Omits jobs that do not exist.
    pub(crate) async fn types_of(&self, ids: &[i64]) -> Result<Vec<(i64, TypeId, String)>, Error> {
        Ok(self.context.store.types_of(ids).await?)
    }

    /// Creates a token. It is valid at this broker immediately, and at other brokers within a second.
    pub(crate) async fn create_token(&self, by: &Actor, query: &TokenQuery) -> Result<(Token, TokenView), Error> {
        let made = access::create_token(&self.context.store, by, query).await?;
        self.context.access.reload().await?;
        Ok(made)
    }

    /// Returns a page of the tokens whose ids come after `after`.
    pub(crate) async fn list_tokens(&self, after: &str, ended: bool, size: usize) -> Result<Vec<TokenView>, Error> {
        Ok(self.context.store.list_tokens(after, ended, size as i32).await?)
    }

    /// Returns a page of the audit log.
    pub(crate) async fn list_audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.context.store.list_audit(query).await?)
    }

    /// Revokes tokens. Returns their ids.
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
                || format!("the principal {:?} has no valid token", principal.unwrap_or_default()),
                |id| format!("there is no valid token {id:?}"),
            );
            return Err(Error::NotFound(problem));
        }
        self.context.access.reload().await?;
        Ok(ids)
    }

    async fn revoke_jwt(&self, name: &str, of_principal: bool, by: &Actor) -> Result<(), Error> {
        let lifetime = self.context.access.jwt_lifetime(name).ok_or_else(|| {
            Error::NotFound(format!(
                "{name:?} has no issuer that this broker knows; write a JSON Web Token as jwt:ISSUER:JTI, a principal as \
                 jwt:ISSUER:SUBJECT"
            ))
        })?;
        if !self.context.store.revoke_jwt(name, of_principal, lifetime + KEPT, by).await? {
            return Err(Error::TooMany(format!(
                "{MOST_TOKENS} JSON Web Tokens and principals are already revoked; remove a key of the issuer instead"
            )));
        }
        Ok(self.context.access.reload().await?)
    }
}
