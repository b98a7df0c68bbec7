//! An issuer that the broker trusts, as the file describes it, and what its tokens may allow.

use std::{collections::HashSet, time::Duration};

use jsonwebtoken::Algorithm;
use serde_json::Value;

use super::claims::Claims;
use crate::access::{MAX_SCOPES, Pattern, Scope};

/// An issuer, and how its tokens are read.
#[derive(Debug)]
pub(super) struct Issuer {
    /// Its name in principals.
    pub(super) name: String,
    /// Its claim `iss`.
    pub(super) iss: String,
    /// Values of `aud`, one of which its tokens must have.
    pub(super) audience: Vec<String>,
    /// What its keys may be for.
    pub(super) algorithms: Vec<Algorithm>,
    /// How much its clock may differ from ours.
    pub(super) leeway: Duration,
    /// How long its tokens hold at most.
    pub(super) max_lifetime: Duration,
    /// The claim that says whose token it is.
    pub(super) principal: String,
    /// The claim with scopes.
    pub(super) scopes: String,
    /// How words in that claim begin which are scopes of Howdah.
    pub(super) scope_prefix: String,
    /// The most that its tokens allow; `None`: what they say.
    pub(super) max_scopes: Option<Vec<Scope>>,
    /// What principals may do besides.
    pub(super) grants: Vec<SubjectGrant>,
}

/// Scopes for subjects, whatever their tokens say.
#[derive(Debug)]
pub(super) struct SubjectGrant {
    /// A subject, or the beginning of subjects and `*`.
    pub(super) subjects: String,
    /// What they may do.
    pub(super) scopes: Vec<Scope>,
}

impl SubjectGrant {
    fn is_for(&self, subject: &str) -> bool {
        match self.subjects.strip_suffix('*') {
            Some(begin) => subject.starts_with(begin),
            None => subject == self.subjects,
        }
    }
}

impl Issuer {
    /// The scopes of a subject with these claims. Words that are no scopes of Howdah are those of other services.
    pub(super) fn scopes_of(&self, subject: &str, claims: &Claims) -> Result<Vec<Scope>, String> {
        let words = self.words(claims)?;
        let said = words.into_iter().filter_map(|word| Scope::parse(word.strip_prefix(&self.scope_prefix)?).ok());
        let said: Vec<Scope> = match &self.max_scopes {
            None => said.collect(),
            Some(most) => said.flat_map(|scope| most.iter().filter_map(move |most| common(&scope, most))).collect(),
        };
        let granted = self.grants.iter().filter(|grant| grant.is_for(subject));
        let all = said.into_iter().chain(granted.flat_map(|grant| grant.scopes.iter().cloned()));
        let mut known = HashSet::new();
        let scopes: Vec<Scope> = all.filter(|scope| known.insert(scope.clone())).collect();
        if scopes.len() > MAX_SCOPES {
            return Err(format!("gives {} scopes; at most {MAX_SCOPES} are allowed", scopes.len()));
        }
        Ok(scopes)
    }

    fn words<'a>(&self, claims: &'a Claims) -> Result<Vec<&'a str>, String> {
        let words = match claims.get(&self.scopes) {
            None => Some(Vec::new()),
            Some(Value::String(text)) => Some(text.split_ascii_whitespace().collect()),
            Some(Value::Array(all)) => all.iter().map(Value::as_str).collect(),
            Some(_) => None,
        };
        words.ok_or_else(|| format!("has a claim {} that is neither a text nor a list of texts", self.scopes))
    }
}

/// What both allow.
fn common(one: &Scope, other: &Scope) -> Option<Scope> {
    let pattern = match (&one.pattern, &other.pattern) {
        (Pattern::Prefix(a), Pattern::Prefix(b)) if a.starts_with(b.as_str()) => &one.pattern,
        (Pattern::Prefix(a), Pattern::Prefix(b)) if b.starts_with(a.as_str()) => &other.pattern,
        (Pattern::Name(name), pattern) if pattern.matches(name) => &one.pattern,
        (pattern, Pattern::Name(name)) if pattern.matches(name) => &other.pattern,
        _ => return None,
    };
    (one.operation == other.operation).then(|| Scope { operation: one.operation, pattern: pattern.clone() })
}

#[cfg(test)]
impl Issuer {
    /// One with the defaults of the file.
    pub(super) fn of_test(iss: &str, audience: &str) -> Self {
        let text = format!("[[issuer]]\nname='i'\niss='{iss}'\naudience='{audience}'\nalgorithms=['ES256']\njwks='/k'");
        super::file::parse(&text).unwrap().remove(0).0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scopes(issuer: &Issuer, claim: &Value) -> Result<Vec<String>, String> {
        let claims = json!({ "scope": claim });
        let scopes = issuer.scopes_of("ann", claims.as_object().unwrap())?;
        Ok(scopes.iter().map(ToString::to_string).collect())
    }

    fn parsed(texts: &[&str]) -> Vec<Scope> {
        texts.iter().map(|text| Scope::parse(text).unwrap()).collect()
    }

    #[test]
    fn words_that_are_scopes_of_howdah_count_and_others_do_not() {
        let mut issuer = Issuer::of_test("i", "a");
        let expected = Ok(vec!["enqueue:mail.*".to_owned(), "read:*".into()]);
        assert_eq!(scopes(&issuer, &json!("openid enqueue:mail.* read:* work:a*b")), expected);
        assert_eq!(scopes(&issuer, &json!(["enqueue:mail.*", "read:*", "profile"])), expected);
        assert_eq!(issuer.scopes_of("ann", &Claims::new()), Ok(Vec::new()));
        for bad in [json!(1), json!(null), json!(["read:*", 1]), json!({ "read": "*" })] {
            assert!(scopes(&issuer, &bad).unwrap_err().contains("claim scope"), "{bad}");
        }
        issuer.scope_prefix = "howdah:".into();
        assert_eq!(scopes(&issuer, &json!("howdah:read:a read:*")), Ok(vec!["read:a".into()]));
    }

    #[test]
    fn no_token_allows_more_than_its_issuer_may() {
        let mut issuer = Issuer::of_test("i", "a");
        issuer.max_scopes = Some(parsed(&["enqueue:mail.*", "read:*", "work:one"]));
        for (said, got) in [
            ("enqueue:*", &["enqueue:mail.*"][..]),
            ("enqueue:mail.a.*", &["enqueue:mail.a.*"]),
            ("enqueue:mail.a", &["enqueue:mail.a"]),
            ("enqueue:sms.* enqueue:mail admin:*", &[]),
            ("read:x read:*", &["read:x", "read:*"]),
            ("work:* work:o* work:one work:two", &["work:one"]),
        ] {
            assert_eq!(scopes(&issuer, &json!(said)).unwrap(), got, "{said}");
        }
        issuer.max_scopes = Some(Vec::new());
        assert_eq!(scopes(&issuer, &json!("read:*")), Ok(Vec::new()));
    }

    #[test]
    fn grants_are_for_a_subject_or_for_all_that_begin_alike() {
        let mut issuer = Issuer::of_test("i", "a");
        let grant = |subjects: &str, scope| SubjectGrant { subjects: subjects.into(), scopes: parsed(&[scope]) };
        issuer.grants =
            vec![grant("ann", "work:a"), grant("an*", "work:b"), grant("anna", "work:c"), grant("b*", "work:d")];
        // What the file grants is not bounded by what tokens may say.
        issuer.max_scopes = Some(Vec::new());
        assert_eq!(scopes(&issuer, &json!("read:*")), Ok(vec!["work:a".into(), "work:b".into()]));
    }
}
