//! Verifies that a token is genuine, meant for this broker and currently valid, and reads its subject.

use std::time::Duration;

use jsonwebtoken::{Validation, decode, errors::ErrorKind};
use serde_json::{Map, Value};

use super::{issuer::Issuer, key::Key};

/// The claims of a token.
pub(super) type Claims = Map<String, Value>;

/// Verifies the signature of a token with a key of its issuer, and then the claims. The error text is a predicate, such as "has
/// no claim exp"; the caller prepends the subject.
pub(super) fn verify(issuer: &Issuer, key: &Key, token: &str) -> Result<Claims, String> {
    // Use the key's algorithm, not the algorithm that the token names.
    let mut validation = Validation::new(key.algorithm);
    validation.leeway = issuer.leeway.as_secs();
    validation.validate_nbf = true;
    validation.set_issuer(&[&issuer.iss]);
    validation.set_audience(&issuer.audience);
    // A claim of the wrong type counts as missing.
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    let token = decode(token, &key.public, &validation).map_err(|error| match error.kind() {
        ErrorKind::InvalidSignature => "has a wrong signature".to_owned(),
        ErrorKind::InvalidIssuer => "is of another issuer (iss)".into(),
        ErrorKind::InvalidAudience => "is not for this broker (aud)".into(),
        ErrorKind::ExpiredSignature => "has expired (exp)".into(),
        ErrorKind::ImmatureSignature => "is not valid yet (nbf)".into(),
        ErrorKind::MissingRequiredClaim(name) | ErrorKind::InvalidClaimFormat(name) => {
            format!("has no claim {name}, or the claim has the wrong type")
        }
        // Error texts of `jsonwebtoken` may contain parts of the token, so other errors get a fixed text.
        _ => "has claims that cannot be read".into(),
    })?;
    Ok(token.claims)
}

/// Returns the subject of the token, as the issuer writes it.
pub(super) fn subject<'a>(issuer: &Issuer, claims: &'a Claims) -> Result<&'a str, String> {
    match claims.get(&issuer.principal) {
        Some(Value::String(subject)) if !subject.is_empty() => Ok(subject),
        _ => Err(format!("has no subject: its claim {} is missing, empty or not a string", issuer.principal)),
    }
}

/// Returns the expiry of a token including the leeway, in seconds of Unix time.
pub(super) fn end(issuer: &Issuer, claims: &Claims) -> u64 {
    time(claims, "exp").unwrap_or_default().saturating_add(issuer.leeway.as_secs())
}

/// Returns the time of issue in seconds of Unix time, if the token has it.
pub(super) fn issued(claims: &Claims) -> Option<u64> {
    time(claims, "iat")
}

/// Refuses a token whose lifetime exceeds the issuer's maximum. The lifetime starts at the time of issue, or now if the token
/// does not have it. The maximum limits the damage of a leaked token.
pub(super) fn check_lifetime(issuer: &Issuer, claims: &Claims, now: u64) -> Result<(), String> {
    let begins = issued(claims).map_or(now, |issued| issued.min(now));
    let lifetime = Duration::from_secs(end(issuer, claims).saturating_sub(begins)).saturating_sub(issuer.leeway);
    // Tolerates an issuer's clock that is ahead, and one second of rounding.
    if lifetime <= issuer.max_lifetime + issuer.leeway + Duration::from_secs(1) {
        return Ok(());
    }
    let (most, lifetime) = (issuer.max_lifetime, Duration::from_secs(lifetime.as_secs()));
    Err(format!(
        "is valid for {}; tokens of its issuer may be valid for {} (exp; max_lifetime of the issuer)",
        humantime::format_duration(lifetime),
        humantime::format_duration(most)
    ))
}

fn time(claims: &Claims, name: &str) -> Option<u64> {
    let fraction = |time: &Value| time.as_f64().and_then(|time| Duration::try_from_secs_f64(time).ok());
    claims.get(name).and_then(|time| time.as_u64().or_else(|| fraction(time).map(|time| time.as_secs())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::credentials::jwt::{
        key::KeySet,
        now,
        signing::{SigningKey, compact, encoded},
    };

    /// Test issuer with a signing key and the public key set.
    struct Signed {
        issuer: Issuer,
        signing: SigningKey,
        keys: KeySet,
    }

    impl Signed {
        fn by(algorithm: &str) -> Self {
            let signing = SigningKey::new(algorithm, "a");
            let (mut issuer, allowed) = (Issuer::of_test("https://i", "howdah"), algorithm.parse().unwrap());
            issuer.algorithms = vec![allowed];
            let set = json!({ "keys": [signing.jwk()] }).to_string();
            let keys = KeySet::parse(set.as_bytes(), &issuer.algorithms).unwrap();
            Self { issuer, signing, keys }
        }

        fn read(&self, token: &str) -> Result<Claims, String> {
            verify(&self.issuer, &self.keys.keys[0], token)
        }

        /// Signs a token with the usual claims and this claim, and verifies the token.
        fn with(&self, name: &str, value: Value) -> Result<Claims, String> {
            let mut claims = usual();
            claims[name] = value;
            self.read(&self.signing.token(&claims))
        }
    }

    fn usual() -> Value {
        json!({ "iss": "https://i", "aud": "howdah", "exp": now() + 60, "sub": "ann" })
    }

    #[test]
    fn each_kind_of_key_verifies_its_own_signatures_only() {
        for algorithm in ["ES256", "EdDSA", "RS256"] {
            let (signed, other) = (Signed::by(algorithm), SigningKey::new(algorithm, "a"));
            let good = signed.signing.token(&usual());
            assert_eq!(signed.read(&good).unwrap()["sub"], "ann");
            let (text, signature) = good.rsplit_once('.').unwrap();
            for bad in [other.token(&usual()), format!("{text}."), format!("{}.{signature}", &text[..text.len() - 2])] {
                assert_eq!(signed.read(&bad).unwrap_err(), "has a wrong signature", "{algorithm} {bad}");
            }
        }
    }

    #[test]
    fn an_rsa_key_with_exponent_1_verifies_no_signature() {
        let mut signed = Signed::by("RS256");
        let mut jwk = signed.signing.jwk();
        jwk["e"] = json!(encoded([1]));
        signed.keys =
            KeySet::parse(json!({ "keys": [jwk] }).to_string().as_bytes(), &signed.issuer.algorithms).unwrap();
        // Padding, "SHA-256" in ASN.1, and the hash (RFC 8017, 9.2).
        let sha = hex::decode("3031300d060960864801650304020105000420").unwrap();
        let padded = |text: &[u8]| [&[0, 1], &[0xff; 202][..], &[0], &sha, &Sha256::digest(text)].concat();
        let token = compact(&signed.signing.header(), &usual(), padded);
        assert_eq!(signed.read(&token).unwrap_err(), "has a wrong signature");
    }

    #[test]
    fn a_token_holds_from_its_begin_until_its_expiry_with_ten_seconds_of_leeway() {
        let signed = Signed::by("EdDSA");
        let ends = |exp: Value| signed.with("exp", exp).map(|claims| end(&signed.issuer, &claims));
        let now = now();
        assert_eq!(ends(json!(now + 60)), Ok(now + 70));
        assert_eq!(ends(json!((now + 60) as f64 + 0.4)), Ok(now + 70));
        assert_eq!(ends(json!(now - 5)), Ok(now + 5));
        assert_eq!(ends(json!(u64::MAX)), Ok(u64::MAX));
        assert!(signed.with("nbf", json!(now + 9)).is_ok());
        assert!(signed.with("aud", json!(["other", "howdah"])).is_ok());
    }

    #[test]
    fn a_token_holds_for_no_longer_than_its_issuer_may_let_it() {
        let issuer = Issuer::of_test("https://i", "howdah");
        let (now, day) = (now(), issuer.max_lifetime.as_secs());
        let check = |claims: Value| check_lifetime(&issuer, claims.as_object().unwrap(), now);
        assert!(check(json!({ "exp": now + day })).is_ok());
        assert!(check(json!({ "exp": now + day, "iat": now + 5 })).is_ok());
        assert!(check(json!({ "exp": now + 60, "iat": now + 60 - day })).is_ok());
        for long in [
            json!({ "exp": now + day + 60 }),
            json!({ "exp": now + day + 60, "iat": now + 120 }),
            json!({ "exp": now + 60, "iat": now - day }),
            json!({ "exp": u64::MAX, "iat": "now" }),
        ] {
            let error = check(long.clone()).unwrap_err();
            assert!(error.contains("may be valid for 1day (exp; max_lifetime"), "{long}: {error}");
        }
    }

    #[test]
    fn a_token_with_a_missing_or_wrong_claim_is_refused() {
        let (signed, now) = (Signed::by("EdDSA"), now());
        for (name, values, problem) in [
            ("iss", vec![json!("https://j")], "another issuer"),
            ("iss", vec![json!(1), json!(null), json!({})], "no claim iss"),
            ("aud", vec![json!("Howdah"), json!("howdah2"), json!([]), json!(["other"])], "not for this broker"),
            ("aud", vec![json!(["howdah", 1]), json!({ "howdah": 1 }), json!(null)], "no claim aud"),
            ("exp", vec![json!(now - 20), json!(0), json!(0.5)], "has expired"),
            (
                "exp",
                vec![json!((now + 60).to_string()), json!(null), json!(-1), json!(-0.6), json!(1e300), json!(true)],
                "no claim exp",
            ),
            ("nbf", vec![json!(now + 30), json!(u64::MAX / 2)], "is not valid yet"),
            ("nbf", vec![json!("0"), json!(-1)], "no claim nbf"),
            ("exp", vec![json!([now + 60]), json!({ "at": now + 60 })], "cannot be read"),
            ("nbf", vec![json!([0])], "cannot be read"),
            ("sub", vec![json!(["ann"])], "cannot be read"),
        ] {
            for value in values {
                let error = signed.with(name, value.clone()).unwrap_err();
                assert!(error.contains(problem), "{name} {value}: {error}");
            }
        }
        for name in ["iss", "aud", "exp"] {
            let mut claims = usual();
            claims.as_object_mut().unwrap().remove(name);
            let error = signed.read(&signed.signing.token(&claims)).unwrap_err();
            assert!(error.contains(&format!("no claim {name}")), "{error}");
        }
    }

    #[test]
    fn the_subject_is_a_text_that_is_not_empty() {
        let signed = Signed::by("EdDSA");
        for bad in [json!(""), json!(7), json!(null)] {
            let claims = signed.with("sub", bad.clone()).unwrap();
            assert!(subject(&signed.issuer, &claims).unwrap_err().contains("has no subject"), "{bad}");
        }
        assert_eq!(subject(&signed.issuer, &signed.with("sub", json!("bob")).unwrap()), Ok("bob"));
    }
}
