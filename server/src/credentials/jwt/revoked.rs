//! Tokens revoked before they expire: a single token by its claim `jti`, or all tokens of a principal issued until a time.

use std::collections::{HashMap, HashSet};

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
