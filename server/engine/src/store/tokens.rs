//! Tokens of callers, revoked JSON Web Tokens, and ended browser sessions.

use std::time::{Duration, SystemTime};

use howdah_core::job::TypeId;
use tokio_postgres::Row;

use super::{Actor, Statement, Store, StoreError, audit::Change, transaction::retry_while_locked_in_side_lane};

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

/// A revoked JSON Web Token, or a principal whose tokens are revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedJwt {
    /// Id of the token, or name of the principal.
    pub name: String,
    /// For a principal: tokens issued up to this Unix time in seconds are revoked. `None` for a single token.
    pub issued_until: Option<u64>,
}

/// Maximum number of valid tokens. Each broker keeps them in memory.
pub const MOST_TOKENS: i64 = 10_000;

impl Store {
    /// Records that the browser session whose cookie has this hash was logged out. The record is kept for `lasts`, the
    /// remaining lifetime of the cookie.
    pub async fn end_session(&self, hash: &[u8], lasts: Duration) -> Result<(), StoreError> {
        let lasts = lasts.as_millis() as i64;
        self.general().await?.query(Statement::EndSession, &[&hash, &lasts]).await.map(drop)
    }

    /// Whether the browser session whose cookie has this hash was logged out.
    pub async fn has_ended(&self, hash: &[u8]) -> Result<bool, StoreError> {
        Ok(self.general().await?.query_one(Statement::HasEnded, &[&hash]).await?.get("ended"))
    }

    /// Returns the task types of the given jobs. Omits jobs that do not exist.
    pub async fn types_of(&self, ids: &[i64]) -> Result<Vec<(i64, TypeId, String)>, StoreError> {
        let rows = self.general().await?.query(Statement::TypesOf, &[&ids]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    pub async fn active_tokens(&self) -> Result<Vec<ActiveToken>, StoreError> {
        let rows = self.general().await?.query(Statement::ActiveTokens, &[]).await?;
        let token = |row: &Row| ActiveToken {
            id: row.get("id"),
            hash: row.get("hash"),
            principal: row.get("principal"),
            scopes: row.get("scopes"),
            ends_in: row.get::<_, Option<i64>>("ends_in_ms").map(|ms| Duration::from_millis(ms.max(0) as u64)),
        };
        Ok(rows.iter().map(token).collect())
    }

    /// Returns the revoked JSON Web Tokens.
    pub async fn revoked_jwts(&self) -> Result<Vec<RevokedJwt>, StoreError> {
        let rows = self.general().await?.query(Statement::RevokedJwts, &[]).await?;
        let revoked = |row: &Row| RevokedJwt {
            name: row.get("name"),
            issued_until: row.get::<_, Option<i64>>("issued_until").map(|seconds| seconds.max(0) as u64),
        };
        Ok(rows.iter().map(revoked).collect())
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
            let rows =
                transaction.query(Statement::RevokeJwt, &[&name, &of_principal, &lifetime, &MOST_TOKENS]).await?;
            transaction.record(by, &changed(&rows)).await?;
            transaction.commit().await?;
            Ok(!rows.is_empty())
        };
        retry_while_locked_in_side_lane(self, revoke).await
    }

    /// Stores a token. `None` if `MOST_TOKENS` valid tokens exist.
    pub async fn create_token(&self, token: NewToken<'_>, by: &Actor) -> Result<Option<TokenView>, StoreError> {
        let lifetime = token.lifetime.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        let NewToken { id, hash, principal, scopes, created_by, .. } = token;
        let create = |store: Self| async move {
            let mut transaction = store.begin().await?;
            let rows = transaction
                .query(Statement::CreateToken, &[&id, &hash, &principal, &scopes, &created_by, &lifetime, &MOST_TOKENS])
                .await?;
            transaction.record(by, &changed(&rows)).await?;
            transaction.commit().await?;
            Ok(rows.first().map(view))
        };
        retry_while_locked_in_side_lane(self, create).await
    }

    /// Returns a page of tokens with ids above `after`, ordered by id. `ended_too` includes expired and revoked tokens.
    pub async fn list_tokens(&self, after: &str, ended_too: bool, at_most: i32) -> Result<Vec<TokenView>, StoreError> {
        let rows = self.general().await?.query(Statement::ListTokens, &[&after, &ended_too, &at_most]).await?;
        Ok(rows.iter().map(view).collect())
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
            let rows = transaction.query(Statement::RevokeTokens, &[&id, &principal]).await?;
            transaction.record(by, &changed(&rows)).await?;
            transaction.commit().await?;
            Ok(rows.iter().map(|row| row.get("id")).collect())
        };
        retry_while_locked_in_side_lane(self, revoke).await
    }
}

fn changed(rows: &[Row]) -> Change<'static> {
    Change::of_ids(&rows.iter().map(|row| row.get("id")).collect::<Vec<String>>())
}

fn view(row: &Row) -> TokenView {
    let time = |name: &str| {
        let micros = row.get::<_, Option<i64>>(name)?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_micros(micros.max(0) as u64))
    };
    TokenView {
        id: row.get("id"),
        principal: row.get("principal"),
        scopes: row.get("scopes"),
        created_by: row.get("created_by"),
        created: time("created").unwrap_or(SystemTime::UNIX_EPOCH),
        expires: time("expires"),
        revoked: time("revoked"),
    }
}
