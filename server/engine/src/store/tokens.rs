//! Tokens of callers, revoked JSON Web Tokens, and ended browser sessions.

use std::time::{Duration, SystemTime};

use howdah_core::job::TypeId;
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    connection::Params,
    rows::{from_row, micros, millis},
    transaction::retry_while_locked_in_side_lane,
};

/// A token that is valid now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveToken {
    /// Token id: the public part of the token.
    pub id: String,
    /// SHA-256 of the whole token.
    pub hash: Vec<u8>,
    /// Principal that the token authenticates.
    pub principal: String,
    pub scopes: Vec<String>,
    /// Remaining lifetime. `None` if the token has no expiry.
    pub ends_in: Option<Duration>,
}

from_row! { ActiveToken(row) { id, hash, principal, scopes, ends_in: millis(row, "ends_in_ms") } }

/// A token to store.
#[derive(Clone, Copy, Debug)]
pub struct NewToken<'a> {
    /// Token id: the public part of the token.
    pub id: &'a str,
    /// SHA-256 of the whole token.
    pub hash: &'a [u8],
    /// Principal that the token authenticates.
    pub principal: &'a str,
    pub scopes: &'a [String],
    /// Principal that creates the token.
    pub created_by: &'a str,
    /// Lifetime from now. `None` if the token has no expiry.
    pub lifetime: Option<Duration>,
}

/// A token as shown to operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Token id: the public part of the token.
    pub id: String,
    /// Principal that the token authenticates.
    pub principal: String,
    pub scopes: Vec<String>,
    /// Principal that created the token. Empty if authentication was off.
    pub created_by: String,
    pub created: SystemTime,
    /// Expiry time, if the token has one.
    pub expires: Option<SystemTime>,
    /// Time of revocation, if the token was revoked.
    pub revoked: Option<SystemTime>,
}

from_row! {
    TokenView(row) {
        id, principal, scopes, created_by, created: time(row, "created").unwrap_or(SystemTime::UNIX_EPOCH),
        expires: time(row, "expires"), revoked: time(row, "revoked"),
    }
}

fn time(row: &Row, column: &str) -> Option<SystemTime> {
    micros(row, column).map(|since| SystemTime::UNIX_EPOCH + since)
}

/// A revoked JSON Web Token, or a principal whose tokens are revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedJwt {
    /// Id of the token, or name of the principal.
    pub name: String,
    /// For a principal: tokens issued up to this Unix time in seconds are revoked. `None` for a single token.
    pub issued_until: Option<u64>,
}

from_row! {
    RevokedJwt(row) { name, issued_until: row.get::<_, Option<i64>>("issued_until").map(|seconds| seconds.max(0) as u64) }
}

/// Maximum number of valid tokens. Each broker keeps them in memory.
pub const MOST_TOKENS: i64 = 10_000;

impl Store {
    /// Records that the browser session whose cookie has this hash was logged out. The record is kept for `lasts`, the
    /// remaining lifetime of the cookie.
    pub async fn end_session(&self, hash: &[u8], lasts: Duration) -> Result<(), StoreError> {
        let lasts = lasts.as_millis() as i64;
        self.general().await?.run(Statement::EndSession, &[&hash, &lasts]).await
    }

    /// Whether the browser session whose cookie has this hash was logged out.
    pub async fn has_ended(&self, hash: &[u8]) -> Result<bool, StoreError> {
        self.general().await?.one(Statement::HasEnded, &[&hash]).await
    }

    /// Returns the task types of the given jobs. Omits jobs that do not exist.
    pub async fn types_of(&self, ids: &[i64]) -> Result<Vec<(i64, TypeId, String)>, StoreError> {
        self.general().await?.list(Statement::TypesOf, &[&ids]).await
    }

    pub async fn active_tokens(&self) -> Result<Vec<ActiveToken>, StoreError> {
        self.general().await?.list(Statement::ActiveTokens, &[]).await
    }

    /// Returns the revoked JSON Web Tokens.
    pub async fn revoked_jwts(&self) -> Result<Vec<RevokedJwt>, StoreError> {
        self.general().await?.list(Statement::RevokedJwts, &[]).await
    }

    /// Revokes a JSON Web Token, or all JSON Web Tokens of a principal. `lifetime` is the longest remaining lifetime of
    /// these tokens, for which the revocation is kept. False if `MOST_TOKENS` revocations exist.
    pub async fn revoke_jwt(
        &self,
        name: &str,
        of_principal: bool,
        lifetime: Duration,
        by: &Actor,
    ) -> Result<bool, StoreError> {
        let lifetime = i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX);
        let revoke = |store: Self| async move {
            let mut transaction = store.begin().await?;
            let names: Vec<String> =
                transaction.list(Statement::RevokeJwt, &[&name, &of_principal, &lifetime, &MOST_TOKENS]).await?;
            transaction.record(by, &Change::of_ids(&names)).await?;
            transaction.commit().await?;
            Ok(!names.is_empty())
        };
        retry_while_locked_in_side_lane(self, revoke).await
    }

    /// Stores a token. `None` if `MOST_TOKENS` valid tokens exist.
    pub async fn create_token(&self, token: NewToken<'_>, by: &Actor) -> Result<Option<TokenView>, StoreError> {
        let lifetime = token.lifetime.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        let NewToken { id, hash, principal, scopes, created_by, .. } = token;
        let create = |store: Self| async move {
            let mut transaction = store.begin().await?;
            let params: Params<'_> = &[&id, &hash, &principal, &scopes, &created_by, &lifetime, &MOST_TOKENS];
            let token: Option<TokenView> = transaction.find(Statement::CreateToken, params).await?;
            let ids: Vec<String> = token.iter().map(|token| token.id.clone()).collect();
            transaction.record(by, &Change::of_ids(&ids)).await?;
            transaction.commit().await?;
            Ok(token)
        };
        retry_while_locked_in_side_lane(self, create).await
    }

    /// Returns a page of tokens with ids above `after`, ordered by id. `ended_too` includes expired and revoked tokens.
    pub async fn list_tokens(&self, after: &str, ended_too: bool, at_most: i32) -> Result<Vec<TokenView>, StoreError> {
        self.general().await?.list(Statement::ListTokens, &[&after, &ended_too, &at_most]).await
    }

    /// Revokes a token by its id, or all tokens of a principal. Returns the ids of the revoked tokens.
    pub async fn revoke_tokens(
        &self,
        id: Option<&str>,
        principal: Option<&str>,
        by: &Actor,
    ) -> Result<Vec<String>, StoreError> {
        let revoke = |store: Self| async move {
            let mut transaction = store.begin().await?;
            let ids: Vec<String> = transaction.list(Statement::RevokeTokens, &[&id, &principal]).await?;
            transaction.record(by, &Change::of_ids(&ids)).await?;
            transaction.commit().await?;
            Ok(ids)
        };
        retry_while_locked_in_side_lane(self, revoke).await
    }
}
