//! In-memory copy of the valid tokens.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_engine::store::ActiveToken;
use parking_lot::RwLock;
use subtle::ConstantTimeEq as _;

use howdah_engine::access::{Caller, Grant, Rights, Scope, Token};

/// A valid token.
struct ValidToken {
    hash: Vec<u8>,
    scopes: Vec<String>,
    ends: Option<Instant>,
    grant: Arc<Grant>,
}

/// Valid tokens by id.
#[derive(Default)]
pub(super) struct Tokens(RwLock<HashMap<String, ValidToken>>);

impl Tokens {
    /// Returns the caller of a valid token. Compares the hash in constant time; the id is not secret.
    pub(super) fn caller(&self, token: &Token) -> Option<Caller> {
        let tokens = self.0.read();
        let known = tokens.get(token.id())?;
        let holds = known.ends.is_none_or(|ends| Instant::now() < ends);
        (bool::from(known.hash.ct_eq(&token.hash())) && holds).then(|| Caller::new(known.grant.clone()))
    }

    /// Replaces the valid tokens. Ends the streams of tokens that are no longer valid or whose rights have changed.
    pub(super) fn replace(&self, active: Vec<ActiveToken>) {
        let now = Instant::now();
        let mut tokens = self.0.write();
        let mut before = std::mem::take(&mut *tokens);
        for token in active {
            let ends = token.ends_in.map(|time| now + time.min(FAR));
            let same = before.get(&token.id).is_some_and(|known| {
                known.hash == token.hash && known.scopes == token.scopes && *known.grant.principal == *token.principal
            });
            // A token whose hash, scopes or principal have changed stays in `before`, so its streams end.
            let kept = if same { before.remove(&token.id) } else { None };
            let known = match kept {
                Some(known) => ValidToken { ends, ..known },
                None => match ValidToken::new(&token, ends) {
                    Ok(known) => known,
                    Err(problem) => {
                        tracing::warn!(token = token.id, problem, "ignoring a token with an invalid scope");
                        continue;
                    }
                },
            };
            tokens.insert(token.id, known);
        }
        // The tokens left in `before` were revoked or have changed.
        before.into_values().for_each(|known| known.grant.ended.cancel());
    }

    /// Ends the streams of expired tokens.
    pub(super) fn end_expired(&self) {
        let now = Instant::now();
        for known in self.0.read().values() {
            if known.ends.is_some_and(|ends| ends <= now) {
                known.grant.ended.cancel();
            }
        }
    }
}

/// Maximum lifetime of a token in memory; a longer one is reduced to it. Some systems cannot represent an `Instant` further in
/// the future.
const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

impl ValidToken {
    fn new(token: &ActiveToken, ends: Option<Instant>) -> Result<Self, String> {
        let scopes = token.scopes.iter().map(|text| Scope::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let grant = Arc::new(Grant::new(&token.principal, Rights::new(scopes)));
        Ok(Self { hash: token.hash.clone(), scopes: token.scopes.clone(), ends, grant })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_engine::access::Operation;

    fn active(token: &Token, principal: &str, scope: &str) -> ActiveToken {
        ActiveToken {
            id: token.id().clone(),
            hash: token.hash().to_vec(),
            principal: principal.into(),
            scopes: vec![scope.into()],
            ends_in: None,
        }
    }

    fn has_ended(caller: &Caller) -> bool {
        futures::FutureExt::now_or_never(caller.ended()).is_some()
    }

    #[test]
    fn a_token_holds_until_it_is_gone_and_only_streams_of_changed_ones_end() {
        let (tokens, a, b) = (Tokens::default(), Token::generate(), Token::generate());
        tokens.replace(vec![active(&a, "ann", "work:*"), active(&b, "bob", "read:x")]);
        let (ann, bob) = (tokens.caller(&a).unwrap(), tokens.caller(&b).unwrap());
        assert_eq!((&**ann.principal(), &**bob.principal()), ("ann", "bob"));
        assert!(ann.may_everywhere(Operation::Work) && !bob.may_everywhere(Operation::Read));
        tokens.replace(vec![active(&a, "ann", "work:*"), active(&b, "bob", "read:y")]);
        assert!(!has_ended(&ann) && has_ended(&bob));
        assert!(!has_ended(&tokens.caller(&b).unwrap()));
        tokens.replace(Vec::new());
        assert!(has_ended(&ann) && tokens.caller(&a).is_none());
    }

    #[test]
    fn a_token_with_a_known_id_and_another_secret_is_refused() {
        let (tokens, real, other) = (Tokens::default(), Token::generate(), Token::generate());
        tokens.replace(vec![ActiveToken { hash: other.hash().to_vec(), ..active(&real, "ann", "work:*") }]);
        assert!(tokens.caller(&real).is_none());
    }

    #[test]
    fn a_token_whose_time_is_over_does_not_hold() {
        let (tokens, token) = (Tokens::default(), Token::generate());
        let soon = Some(Duration::from_secs(3600));
        tokens.replace(vec![ActiveToken { ends_in: soon, ..active(&token, "ann", "work:*") }]);
        let caller = tokens.caller(&token).unwrap();
        tokens.end_expired();
        assert!(!has_ended(&caller));
        tokens.replace(vec![ActiveToken { ends_in: Some(Duration::ZERO), ..active(&token, "ann", "work:*") }]);
        tokens.end_expired();
        assert!(has_ended(&caller) && tokens.caller(&token).is_none());
    }
}
