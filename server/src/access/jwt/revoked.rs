//! Tokens revoked before they expire: a single token by its claim `jti`, or all tokens of a principal issued until a time.

use std::collections::{HashMap, HashSet};

/// The facts about a token by which it can be revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// `jwt:ISSUER:JTI`, if the token has a claim `jti` that fits into a name.
    pub(super) id: Option<String>,
    /// Time of issue (claim `iat`), in seconds of Unix time.
    pub(super) issued: Option<u64>,
}

/// The revoked tokens.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    ids: HashSet<String>,
    /// By principal: tokens issued until this time are revoked (seconds of Unix time).
    until: HashMap<String, u64>,
}

impl Revoked {
    /// Builds the set from names: a token's name without a time, or a principal's name with the time.
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

    /// Whether a token is revoked. A token without a time of issue counts as issued before the time.
    pub(super) fn has(&self, principal: &str, facts: &Facts) -> bool {
        facts.id.as_ref().is_some_and(|id| self.ids.contains(id))
            || self.until.get(principal).is_some_and(|until| facts.issued.is_none_or(|issued| issued <= *until))
    }
}
