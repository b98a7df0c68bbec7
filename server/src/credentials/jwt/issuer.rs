//! A trusted issuer as configured in the file of issuers, the scopes that its tokens may grant, and the names of its
//! principals: `jwt:ISSUER:SUBJECT`.
//!
//! Sessions and request keys belong to principals, so two subjects must never have the same name. Principals of Howdah tokens
//! cannot begin with `jwt:` (`howdah_engine::access::check_principal`). The issuer's name comes from the file and has no
//! colon, so the second colon ends it. The escaping of subjects is unambiguous.

use std::{collections::HashSet, time::Duration};

use howdah_engine::access::{JWT_PRINCIPAL, MAX_SCOPES, PRINCIPAL_BYTES, Pattern, Scope};
use jsonwebtoken::Algorithm;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::Value;

use crate::credentials::jwt::claims::Claims;

/// A trusted issuer and the rules for its tokens.
#[derive(Debug)]
pub(super) struct Issuer {
    /// Name of the issuer, which becomes part of principals: `jwt:NAME:SUBJECT`.
    pub(super) name: String,
    /// Required value of the claim `iss`.
    pub(super) iss: String,
    /// Accepted values of the claim `aud`; a token must have at least one of them.
    pub(super) audience: Vec<String>,
    /// Accepted signature algorithms.
    pub(super) algorithms: Vec<Algorithm>,
    /// Tolerated difference between the issuer's clock and the broker's clock.
    pub(super) leeway: Duration,
    /// Maximum lifetime of the issuer's tokens.
    pub(super) max_lifetime: Duration,
    /// Name of the claim that holds the subject.
    pub(super) principal: String,
    /// Name of the claim that holds the scopes.
    pub(super) scopes: String,
    /// Prefix that marks Howdah scopes in the scopes claim. Words without it belong to other services.
    pub(super) scope_prefix: String,
    /// Maximum scopes that the issuer's tokens can grant. `None` for no limit.
    pub(super) max_scopes: Option<Vec<Scope>>,
    /// Scopes that the file of issuers grants to subjects, in addition to the scopes in their tokens.
    pub(super) grants: Vec<SubjectGrant>,
}

/// Scopes that the file of issuers grants to some subjects, whatever their tokens contain.
#[derive(Debug)]
pub(super) struct SubjectGrant {
    /// A subject, or a prefix of subjects followed by `*`.
    pub(super) subjects: String,
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
    /// Returns the scopes of a subject, from the claims of its token and from the file. Ignores words in the claims that are
    /// not Howdah scopes.
    pub(super) fn scopes_of(&self, subject: &str, claims: &Claims) -> Result<Vec<Scope>, String> {
        let words = self.words(claims)?;
        let claimed = words.into_iter().filter_map(|word| Scope::parse(word.strip_prefix(&self.scope_prefix)?).ok());
        let claimed: Vec<Scope> = match &self.max_scopes {
            None => claimed.collect(),
            Some(most) => {
                claimed.flat_map(|scope| most.iter().filter_map(move |most| intersection(&scope, most))).collect()
            }
        };
        let granted = self.grants.iter().filter(|grant| grant.is_for(subject));
        let all = claimed.into_iter().chain(granted.flat_map(|grant| grant.scopes.iter().cloned()));
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
        words.ok_or_else(|| format!("has a claim {} that is neither a string nor a list of strings", self.scopes))
    }
}

/// Returns the intersection of two scopes.
fn intersection(one: &Scope, other: &Scope) -> Option<Scope> {
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
    pub(super) fn of_test(iss: &str, audience: &str) -> Self {
        let text = format!("[[issuer]]\nname='i'\niss='{iss}'\naudience='{audience}'\nalgorithms=['ES256']\njwks='/k'");
        super::file::parse(&text).unwrap().remove(0).0
    }
}

/// Characters that are escaped in subjects: those that a principal cannot contain, and the escape character `%`.
const WRITTEN: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Returns the name of a principal. Refuses a subject that is too long: a shortened name could belong to another subject.
pub(super) fn principal_name(issuer: &str, subject: &str) -> Result<String, String> {
    let name = format!("{JWT_PRINCIPAL}{issuer}:{}", utf8_percent_encode(subject, WRITTEN));
    if name.len() > PRINCIPAL_BYTES {
        return Err(format!(
            "has a subject that is too long: as a principal it has {} bytes; {PRINCIPAL_BYTES} are allowed",
            name.len()
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
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
        for (claimed, got) in [
            ("enqueue:*", &["enqueue:mail.*"][..]),
            ("enqueue:mail.a.*", &["enqueue:mail.a.*"]),
            ("enqueue:mail.a", &["enqueue:mail.a"]),
            ("enqueue:sms.* enqueue:mail admin:*", &[]),
            ("read:x read:*", &["read:x", "read:*"]),
            ("work:* work:o* work:one work:two", &["work:one"]),
        ] {
            assert_eq!(scopes(&issuer, &json!(claimed)).unwrap(), got, "{claimed}");
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
        // `max_scopes` does not limit the scopes that the file grants.
        issuer.max_scopes = Some(Vec::new());
        assert_eq!(scopes(&issuer, &json!("read:*")), Ok(vec!["work:a".into(), "work:b".into()]));
    }

    #[test]
    fn a_name_has_the_issuer_and_the_subject() {
        assert_eq!(principal_name("corp", "ann").unwrap(), "jwt:corp:ann");
        assert_eq!(
            principal_name("k8s", "system:serviceaccount:ci:runner").unwrap(),
            "jwt:k8s:system:serviceaccount:ci:runner"
        );
        assert_eq!(principal_name("corp", "a b%20\u{e9}\n").unwrap(), "jwt:corp:a%20b%2520%C3%A9%0A");
        assert!(principal_name("corp", &"x".repeat(192)).unwrap_err().contains("201 bytes"));
        assert!(principal_name("corp", &"x".repeat(191)).is_ok());
    }

    proptest! {
        #[test]
        fn two_holders_never_have_one_name(
            one in ("[a-c-]{1,3}", "[a:%0-2 \u{e9}\n]{1,6}"),
            other in ("[a-c-]{1,3}", "[a:%0-2 \u{e9}\n]{1,6}"),
        ) {
            let named = |(issuer, subject): &(String, String)| principal_name(issuer, subject).unwrap();
            prop_assert_eq!(named(&one) == named(&other), one == other);
            prop_assert!(named(&one).chars().all(|c| c.is_ascii_graphic()));
        }
    }
}
