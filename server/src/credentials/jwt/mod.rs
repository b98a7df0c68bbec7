//! JSON Web Tokens of other issuers as credentials. `file` and `issuer` describe the trusted
//! issuers; `key`, `keys` and `source` read their public keys; `claims` parses and verifies tokens; `cache` keeps verified
//! tokens, and the revoked ones. The crate `jsonwebtoken` decodes and verifies tokens.

mod cache;
mod claims;
mod file;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod issuer;
mod key;
mod keys;
mod source;

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

use howdah_core::error::Error;
use howdah_engine::{
    access::{Caller, Grant, JWT_PRINCIPAL, Rights},
    metrics::JwtMetrics,
    quota::{Address, Cost},
    store::RevokedJwt,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_util::task::AbortOnDropHandle;

use self::{
    cache::{Cache, Facts, Revoked},
    claims::Unverified,
    issuer::Issuer,
    keys::Keys,
};
#[cfg(test)]
pub(crate) use claims::MAX_BYTES as TOKEN_BYTES;
#[cfg(feature = "fuzzing")]
pub(crate) use fuzz::read as read_for_fuzzers;
#[cfg(test)]
pub(crate) use source::{BYTES as KEYS_BYTES, WITHIN as KEYS_WITHIN};

/// Interval at which expired tokens are found and their streams ended.
const CHECK: Duration = Duration::from_secs(1);

/// The trusted issuers, and the callers with verified tokens.
pub(super) struct Jwt {
    /// Trusted issuers by their claim `iss`.
    issuers: HashMap<String, Trusted>,
    verified: Arc<Cache>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

struct Trusted {
    issuer: Issuer,
    keys: Arc<Keys>,
}

impl Jwt {
    /// Reads the file of issuers, and starts a task per issuer that reads its keys.
    pub(super) fn start(path: &Path, metrics: &JwtMetrics) -> Result<Self, String> {
        let verified = Arc::new(Cache::default());
        let mut tasks = vec![AbortOnDropHandle::new(tokio::spawn(end_expired(verified.clone())))];
        let mut issuers = HashMap::new();
        for (issuer, location) in file::read(path)? {
            let source = location.open().map_err(|problem| {
                format!("cannot use auth_jwt_file {}: {}: {problem}", path.display(), issuer.name)
            })?;
            let pace = keys::Pace::new(&source);
            let keys = Arc::new(Keys::new(&issuer.name, &issuer.algorithms, source, pace, metrics));
            tasks.push(AbortOnDropHandle::new(tokio::spawn(keys.clone().keep())));
            issuers.insert(issuer.iss.clone(), Trusted { issuer, keys });
        }
        Ok(Self { issuers, verified, _tasks: tasks })
    }

    /// Returns the caller of a token. Errors contain no part of the token. An address with too many invalid tokens is throttled
    /// before a signature is verified.
    pub(super) async fn authenticate(&self, text: &str, from: Option<&Address>) -> Result<Caller, Error> {
        // The length check comes first, because the time to hash and parse a token is proportional to its length.
        if text.len() > claims::MAX_BYTES {
            return Err(refused(format!("has {} bytes; at most {} are read", text.len(), claims::MAX_BYTES)));
        }
        let hash: cache::Hash = Sha256::digest(text).into();
        if let Some(caller) = self.verified.get(&hash, now()) {
            return Ok(caller);
        }
        let token = Unverified::parse(text).map_err(refused)?;
        let trusted = self
            .issuers
            .get(&token.iss)
            .ok_or_else(|| refused("is of an issuer (iss) that this broker does not trust"))?;
        if !trusted.issuer.algorithms.contains(&token.algorithm) {
            return Err(refused("has an algorithm (alg) that its issuer may not use"));
        }
        let known = trusted.keys.knows(token.algorithm, token.key.as_deref());
        let cost = if known { Cost::Signature } else { Cost::Read };
        from.map_or(Ok(()), |address| address.may_fail(cost))?;
        let verified = self.verify(trusted, &token, text, hash).await;
        if let (Err(Error::Unauthenticated(_)), Some(address)) = (&verified, from) {
            address.failed(cost)?;
        }
        verified
    }

    /// Verifies the signature and the claims of a token, and returns its caller.
    async fn verify(
        &self,
        trusted: &Trusted,
        token: &Unverified,
        text: &str,
        hash: cache::Hash,
    ) -> Result<Caller, Error> {
        // Only a key of the token's issuer counts. A signature by another issuer's key proves nothing.
        let key = trusted.keys.find(token.algorithm, token.key.as_deref()).await?;
        let (grant, facts, ends) = grant(&trusted.issuer, &key, text).map_err(refused)?;
        self.verified.put(hash, grant, facts, ends).map_err(refused)
    }

    /// Replaces the revoked tokens. Adds the issuer's leeway to the time until which issued tokens are revoked, because the
    /// issuer's clock may be ahead of the database's clock.
    pub(super) fn revoke(&self, revoked: Vec<RevokedJwt>) {
        let names = revoked.into_iter().map(|RevokedJwt { name, issued_until }| {
            let leeway = self.issuer_of(&name).map_or(0, |issuer| issuer.leeway.as_secs());
            (name, issued_until.map(|until| until.saturating_add(leeway)))
        });
        self.verified.revoke(Revoked::new(names));
    }

    /// Returns the maximum remaining validity of tokens with this name or principal. `None` if their issuer is unknown.
    pub(super) fn longest_lifetime(&self, name: &str) -> Option<Duration> {
        self.issuer_of(name).map(|issuer| issuer.max_lifetime + issuer.leeway)
    }

    fn issuer_of(&self, name: &str) -> Option<&Issuer> {
        let (issuer, _) = name.strip_prefix(JWT_PRINCIPAL)?.split_once(':')?;
        self.issuers.values().map(|trusted| &trusted.issuer).find(|trusted| trusted.name == issuer)
    }
}

/// Verifies a token. Returns its grant, the facts by which it can be revoked, and its expiry in seconds of Unix time.
fn grant(issuer: &Issuer, key: &key::Key, token: &str) -> Result<(Grant, Facts, u64), String> {
    let claims = claims::verify(issuer, key, token)?;
    claims::check_lifetime(issuer, &claims, now())?;
    let subject = claims::subject(issuer, &claims)?;
    let rights = Rights::new(issuer.scopes_of(subject, &claims)?);
    let grant = Grant::until(key.removed.child_token(), &issuer::principal_name(&issuer.name, subject)?, rights);
    let id = claims.get("jti").and_then(Value::as_str).and_then(|id| issuer::principal_name(&issuer.name, id).ok());
    let facts = Facts { id, issued: claims::issued(&claims) };
    Ok((grant, facts, claims::end(issuer, &claims)))
}

fn refused(problem: impl AsRef<str>) -> Error {
    Error::Unauthenticated(format!("the JSON Web Token {}", problem.as_ref()))
}

/// Returns the current Unix time in seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

async fn end_expired(verified: Arc<Cache>) {
    loop {
        tokio::time::sleep(CHECK).await;
        verified.end_expired(now());
    }
}
