//! Tokens of callers.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::{Actor, Statement, Store, StoreError, audit::Change, transaction::until_unlocked};
use crate::job::TypeId;

/// A token that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveToken {
    /// Its public part.
    pub id: String,
    /// SHA-256 of the whole.
    pub hash: Vec<u8>,
    /// Whose it is.
    pub principal: String,
    /// What it allows.
    pub scopes: Vec<String>,
    /// How long it holds from now on; `None`: until it is revoked.
    pub ends_in: Option<Duration>,
}

/// A token to store.
#[derive(Clone, Copy, Debug)]
pub struct NewToken<'a> {
    /// Its public part.
    pub id: &'a str,
    /// SHA-256 of the whole.
    pub hash: &'a [u8],
    /// Whose it is.
    pub principal: &'a str,
    /// What it allows.
    pub scopes: &'a [String],
    /// Who makes it.
    pub created_by: &'a str,
    /// How long it holds.
    pub lifetime: Option<Duration>,
}

/// A token as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Its public part.
    pub id: String,
    /// Whose it is.
    pub principal: String,
    /// What it allows.
    pub scopes: Vec<String>,
    /// Who made it; empty: nobody in particular.
    pub created_by: String,
    /// When it was made.
    pub created: SystemTime,
    /// When it ends by itself.
    pub expires: Option<SystemTime>,
    /// When it was revoked.
    pub revoked: Option<SystemTime>,
}

/// A JSON Web Token that was revoked, or all of a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedJwt {
    /// The token, or the principal.
    pub name: String,
    /// Until when the principal's tokens were issued, in seconds of Unix time; `None`: it is a token.
    pub issued_until: Option<u64>,
}

/// The most tokens that hold at once. Each broker keeps them in memory.
pub const MOST_TOKENS: i64 = 10_000;

impl Store {
    /// The task types of these jobs. Jobs that do not exist are left out.
    pub async fn types_of(&self, ids: &[i64]) -> Result<Vec<(i64, TypeId, String)>, StoreError> {
        let rows = self.general().await?.query(Statement::TypesOf, &[&ids]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    /// All tokens that hold now.
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

    /// The JSON Web Tokens that are revoked.
    pub async fn revoked_jwts(&self) -> Result<Vec<RevokedJwt>, StoreError> {
        let rows = self.general().await?.query(Statement::RevokedJwts, &[]).await?;
        let revoked = |row: &Row| RevokedJwt {
            name: row.get("name"),
            issued_until: row.get::<_, Option<i64>>("issued_until").map(|seconds| seconds.max(0) as u64),
        };
        Ok(rows.iter().map(revoked).collect())
    }

    /// Revokes a JSON Web Token, or those of a principal, which could hold for this long. False: `MOST_TOKENS` are revoked.
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
        until_unlocked(self, revoke).await
    }

    /// Stores a token; `None`: there are `MOST_TOKENS`.
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
        until_unlocked(self, create).await
    }

    /// A page of tokens, in the order of their ids.
    pub async fn list_tokens(&self, after: &str, ended_too: bool, at_most: i32) -> Result<Vec<TokenView>, StoreError> {
        let rows = self.general().await?.query(Statement::ListTokens, &[&after, &ended_too, &at_most]).await?;
        Ok(rows.iter().map(view).collect())
    }

    /// Revokes a token by its id, or all tokens of a principal; returns the ids.
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
        until_unlocked(self, revoke).await
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
