//! A cache of callers with verified tokens, so that a repeated token needs no signature check. Tokens may be revoked before
//! they expire: a single token by its claim `jti`, or all tokens of a principal issued until a time.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use howdah_engine::access::{Caller, Grant};
use parking_lot::RwLock;

/// Minimum number of cached tokens before unused ones are evicted.
const KEPT: usize = 4_000;

/// The SHA-256 of a token.
pub(super) type Hash = [u8; 32];

/// A verified token.
struct Verified {
    grant: Arc<Grant>,
    facts: Facts,
    /// Expiry of the token, in seconds of Unix time.
    ends: u64,
}

impl Verified {
    fn holds(&self, now: u64) -> bool {
        now < self.ends && !self.grant.ended.is_cancelled()
    }
}

/// Verified tokens by their hash.
#[derive(Default)]
pub(super) struct Cache(RwLock<Callers>);

#[derive(Default)]
struct Callers {
    verified: HashMap<Hash, Verified>,
    /// Number of cached tokens left after the last eviction.
    held: usize,
    /// Revoked tokens, which are never in the cache.
    revoked: Revoked,
}

impl Cache {
    /// Returns the caller of a cached token, if the token is still valid.
    pub(super) fn get(&self, hash: &Hash, now: u64) -> Option<Caller> {
        let callers = self.0.read();
        let known = callers.verified.get(hash).filter(|known| known.holds(now))?;
        Some(Caller::new(known.grant.clone()))
    }

    /// Adds a caller, unless its token was revoked. A full cache first evicts entries that no call and no stream uses. Entries
    /// with open streams stay, because the streams must end when the token expires.
    pub(super) fn put(&self, hash: Hash, grant: Grant, facts: Facts, ends: u64) -> Result<Caller, &'static str> {
        let mut callers = self.0.write();
        if callers.revoked.has(&grant.principal, &facts) {
            return Err("was revoked");
        }
        if callers.verified.len() >= KEPT.max(2 * callers.held) {
            callers.verified.retain(|_, known| Arc::strong_count(&known.grant) > 1);
            callers.held = callers.verified.len();
        }
        // A concurrent call may have added the same token already.
        if let Some(known) = callers.verified.get(&hash).filter(|known| !known.grant.ended.is_cancelled()) {
            return Ok(Caller::new(known.grant.clone()));
        }
        let grant = Arc::new(grant);
        callers.verified.insert(hash, Verified { grant: grant.clone(), facts, ends });
        Ok(Caller::new(grant))
    }

    /// Replaces the set of revoked tokens. Ends the streams of cached tokens that are now revoked.
    pub(super) fn revoke(&self, revoked: Revoked) {
        let mut callers = self.0.write();
        callers.verified.retain(|_, known| {
            let holds = !revoked.has(&known.grant.principal, &known.facts);
            if !holds {
                known.grant.ended.cancel();
            }
            holds
        });
        callers.revoked = revoked;
    }

    /// Removes cached tokens that are no longer valid, and ends the streams of expired ones.
    pub(super) fn end_expired(&self, now: u64) {
        if self.0.read().verified.values().all(|known| known.holds(now)) {
            return;
        }
        self.0.write().verified.retain(|_, known| {
            let holds = known.holds(now);
            if !holds {
                known.grant.ended.cancel();
            }
            holds
        });
    }
}

/// Claims of a token by which it can be revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Name of the token, `jwt:ISSUER:JTI`, if its claim `jti` exists and is short enough.
    pub(super) id: Option<String>,
    /// Time at which the token was issued (claim `iat`), in seconds of Unix time.
    pub(super) issued: Option<u64>,
}

/// The revoked tokens.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    ids: HashSet<String>,
    /// For each principal, the Unix time in seconds until which all tokens issued to it are revoked.
    until: HashMap<String, u64>,
}

impl Revoked {
    /// Builds the set of revoked tokens. A name without a time revokes one token; a principal with a time revokes all tokens
    /// issued to it until then.
    pub(super) fn new(names: impl IntoIterator<Item = (String, Option<u64>)>) -> Self {
        let mut revoked = Self::default();
        for (name, until) in names {
            match until {
                None => drop(revoked.ids.insert(name)),
                Some(until) => drop(revoked.until.insert(name, until)),
            }
        }
        revoked
    }

    /// Whether a token is revoked. If all tokens of its principal until some time are revoked, a token without `iat` is revoked
    /// too.
    pub(super) fn has(&self, principal: &str, facts: &Facts) -> bool {
        facts.id.as_ref().is_some_and(|id| self.ids.contains(id))
            || self.until.get(principal).is_some_and(|until| facts.issued.is_none_or(|issued| issued <= *until))
    }
}

#[cfg(test)]
mod tests {
    use howdah_engine::access::Rights;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn grant(key: &CancellationToken) -> Grant {
        Grant::until(key.child_token(), "jwt:i:ann", Rights::new(Vec::new()))
    }

    fn put(cache: &Cache, n: usize, key: &CancellationToken) -> Caller {
        cache.put(hash(n), grant(key), Facts::default(), 100).unwrap()
    }

    fn has_ended(caller: &Caller) -> bool {
        futures::FutureExt::now_or_never(caller.ended()).is_some()
    }

    fn hash(n: usize) -> Hash {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&n.to_le_bytes());
        hash
    }

    #[test]
    fn a_cached_caller_and_its_streams_end_when_the_token_expires() {
        let (cache, key) = (Cache::default(), CancellationToken::new());
        let caller = put(&cache, 1, &key);
        assert!(cache.get(&hash(1), 99).is_some() && cache.get(&hash(2), 99).is_none());
        assert!(cache.get(&hash(1), 100).is_none());
        cache.end_expired(99);
        assert!(!has_ended(&caller));
        cache.end_expired(100);
        assert!(has_ended(&caller) && cache.0.read().verified.is_empty());
    }

    #[test]
    fn callers_end_with_the_key_that_verified_them() {
        let (cache, key, other) = (Cache::default(), CancellationToken::new(), CancellationToken::new());
        let (one, two) = (put(&cache, 1, &key), put(&cache, 2, &other));
        key.cancel();
        assert!(has_ended(&one) && !has_ended(&two));
        assert!(cache.get(&hash(1), 1).is_none() && cache.get(&hash(2), 1).is_some());
    }

    #[test]
    fn a_revoked_token_ends_at_once_and_is_not_cached_again() {
        let (cache, key) = (Cache::default(), CancellationToken::new());
        let facts = |issued| Facts { id: None, issued: Some(issued) };
        let early = cache.put(hash(1), grant(&key), facts(50), 100).unwrap();
        let late = cache.put(hash(2), grant(&key), facts(51), 100).unwrap();
        let revoke = || Revoked::new([("jwt:i:ann".to_owned(), Some(50))]);
        cache.revoke(revoke());
        assert!(has_ended(&early) && !has_ended(&late) && cache.get(&hash(1), 1).is_none());
        assert!(cache.put(hash(1), grant(&key), facts(50), 100).is_err());
        assert!(cache.put(hash(3), grant(&key), Facts::default(), 100).is_err(), "who knows when it was issued");
        assert!(cache.get(&hash(2), 1).is_some());
    }

    #[test]
    fn the_cache_is_bounded_and_callers_with_streams_stay_in_it() {
        let (cache, key) = (Cache::default(), CancellationToken::new());
        let stream = put(&cache, 0, &key);
        for n in 1..3 * KEPT {
            put(&cache, n, &key);
            assert!(cache.0.read().verified.len() <= KEPT);
        }
        cache.end_expired(100);
        assert!(has_ended(&stream));
    }
}
