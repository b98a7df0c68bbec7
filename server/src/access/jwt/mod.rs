//! JSON Web Tokens of other issuers as credentials: what they say (`text`), who may issue them (`file`, `issuer`), the keys
//! that verify them (`key`, `keys`, `source`), what they must claim (`claims`), whose they are (`principal`), those that were
//! verified (`cache`) or revoked (`revoked`). The crate `jsonwebtoken` reads and verifies them.

mod cache;
mod claims;
mod fields;
mod file;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod issuer;
mod key;
mod keys;
mod principal;
mod revoked;
mod source;
mod text;

#[cfg(test)]
mod signing;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_util::task::AbortOnDropHandle;

use self::{
    cache::Cache,
    issuer::Issuer,
    keys::Keys,
    revoked::{Facts, Revoked},
    text::Unverified,
};
use super::{Caller, Grant, Rights};
use crate::{error::Error, metrics::JwtMetrics, quota::Address, store::RevokedJwt};
#[cfg(feature = "fuzzing")]
pub(crate) use fuzz::read as read_for_fuzzers;
pub(crate) use principal::BEGIN as PRINCIPAL_BEGIN;
pub(crate) use source::{BYTES as KEYS_BYTES, WITHIN as KEYS_WITHIN};
pub(crate) use text::MAX_BYTES as TOKEN_BYTES;

/// How often the streams of expired tokens are ended.
const CHECK: Duration = Duration::from_secs(1);

/// The issuers that the broker trusts, and the callers that they have named.
pub(super) struct Jwt {
    /// By the claim `iss`.
    issuers: HashMap<String, Trusted>,
    verified: Arc<Cache>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

struct Trusted {
    issuer: Issuer,
    keys: Arc<Keys>,
}

impl Jwt {
    /// Reads the file of issuers, and begins to read their keys.
    pub(super) fn start(path: &Path, metrics: &JwtMetrics) -> Result<Self, String> {
        let verified = Arc::new(Cache::default());
        let mut tasks = vec![AbortOnDropHandle::new(tokio::spawn(end_expired(verified.clone())))];
        let mut issuers = HashMap::new();
        for (issuer, location) in file::read(path)? {
            let source = location.open().map_err(|problem| {
                format!("cannot use auth_jwt_file {}: {}: {problem}", path.display(), issuer.name)
            })?;
            let pace = keys::Pace::of(&source);
            let keys = Arc::new(Keys::new(&issuer.name, &issuer.algorithms, source, pace, metrics));
            tasks.push(AbortOnDropHandle::new(tokio::spawn(keys.clone().keep())));
            issuers.insert(issuer.iss.clone(), Trusted { issuer, keys });
        }
        Ok(Self { issuers, verified, _tasks: tasks })
    }

    /// Whose token this is. No error has a part of it. An address from which many came that do not hold waits, before any
    /// signature is computed.
    pub(super) async fn authenticate(&self, text: &str, from: Option<&Address>) -> Result<Caller, Error> {
        // Before its length is known to be bounded, nothing is computed.
        if text.len() > text::MAX_BYTES {
            return Err(refused(format!("has {} bytes; at most {} are read", text.len(), text::MAX_BYTES)));
        }
        let hash: cache::Hash = Sha256::digest(text).into();
        if let Some(caller) = self.verified.get(&hash, now()) {
            return Ok(caller);
        }
        let token = Unverified::parse(text).map_err(refused)?;
        let trusted = self
            .issuers
            .get(&token.iss)
            .ok_or_else(|| refused("is of an issuer (iss) that this broker does not know"))?;
        if !trusted.issuer.algorithms.contains(&token.algorithm) {
            return Err(refused("has an algorithm (alg) that its issuer may not use"));
        }
        from.map_or(Ok(()), Address::may_fail)?;
        // Only keys of this issuer: that of another one proves nothing.
        let key = trusted.keys.find(token.algorithm, token.key.as_deref()).await?;
        let (grant, facts, ends) = grant(&trusted.issuer, &key, text).map_err(refused)?;
        self.verified.put(hash, grant, facts, ends).map_err(refused)
    }

    /// From now on these are revoked. The clock of an issuer may be ahead of the database's.
    pub(super) fn revoke(&self, revoked: Vec<RevokedJwt>) {
        let names = revoked.into_iter().map(|RevokedJwt { name, issued_until }| {
            let leeway = self.issuer_of(&name).map_or(0, |issuer| issuer.leeway.as_secs());
            (name, issued_until.map(|until| until.saturating_add(leeway)))
        });
        self.verified.revoke(Revoked::of(names));
    }

    /// How long tokens may still hold of whose name or principal this is; `None`: its issuer is not known here.
    pub(super) fn longest_lifetime(&self, name: &str) -> Option<Duration> {
        self.issuer_of(name).map(|issuer| issuer.max_lifetime + issuer.leeway)
    }

    fn issuer_of(&self, name: &str) -> Option<&Issuer> {
        let (issuer, _) = name.strip_prefix(principal::BEGIN)?.split_once(':')?;
        self.issuers.values().map(|trusted| &trusted.issuer).find(|trusted| trusted.name == issuer)
    }
}

/// What a token grants, by what it may be revoked, and until when it holds.
fn grant(issuer: &Issuer, key: &key::Key, token: &str) -> Result<(Grant, Facts, u64), String> {
    let claims = claims::verify(issuer, key, token)?;
    claims::check_lifetime(issuer, &claims, now())?;
    let subject = claims::subject(issuer, &claims)?;
    let rights = Rights::of(issuer.scopes_of(subject, &claims)?);
    let grant = Grant::until(key.gone.child_token(), &principal::name(&issuer.name, subject)?, rights);
    let id = claims.get("jti").and_then(Value::as_str).and_then(|id| principal::name(&issuer.name, id).ok());
    let facts = Facts { id, issued: claims::issued(&claims) };
    Ok((grant, facts, claims::end(issuer, &claims)))
}

fn refused(problem: impl AsRef<str>) -> Error {
    Error::Unauthenticated(format!("the JSON Web Token {}", problem.as_ref()))
}

/// In seconds of Unix time.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

async fn end_expired(verified: Arc<Cache>) {
    loop {
        tokio::time::sleep(CHECK).await;
        verified.end_expired(now());
    }
}
