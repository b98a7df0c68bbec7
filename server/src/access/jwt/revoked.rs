//! Tokens that were revoked before they expire: one by its claim `jti`, or all of a principal that were issued until a time.

use std::collections::{HashMap, HashSet};

/// What a token says of itself, by which it can be revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// `jwt:ISSUER:JTI`, if it has a claim `jti` that can be written so.
    pub(super) id: Option<String>,
    /// When it was issued, in seconds of Unix time.
    pub(super) issued: Option<u64>,
}

/// What is revoked.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    ids: HashSet<String>,
    /// Until when tokens of a principal were issued that are revoked.
    until: HashMap<String, u64>,
}

impl Revoked {
    /// By names: of a token, or of a principal with the time until which its tokens are revoked.
    pub(super) fn of(names: impl IntoIterator<Item = (String, Option<u64>)>) -> Self {
        let mut revoked = Self::default();
        for (name, until) in names {
            match until {
                None => drop(revoked.ids.insert(name)),
                Some(until) => drop(revoked.until.insert(name, until)),
            }
        }
        revoked
    }

    /// Whether a token is among them. One that does not say when it was issued may be an old one.
    pub(super) fn has(&self, principal: &str, facts: &Facts) -> bool {
        facts.id.as_ref().is_some_and(|id| self.ids.contains(id))
            || self.until.get(principal).is_some_and(|until| facts.issued.is_none_or(|issued| issued <= *until))
    }
}
