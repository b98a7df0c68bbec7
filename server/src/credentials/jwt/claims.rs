//! Parses the unverified parts of a token that are needed to find its key. Verifies that a token is genuine, meant for this
//! broker and currently valid, and reads its subject.

use std::time::Duration;

use jsonwebtoken::{
    Algorithm, Header, Validation, dangerous::insecure_decode_claims, decode, decode_header, errors::ErrorKind,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::credentials::jwt::{issuer::Issuer, key::Key};

/// Maximum length of a token, in bytes.
pub(crate) const MAX_BYTES: usize = 8 << 10;

/// A parsed token whose signature is not verified yet. Keys in its header (`jwk`, `jku`, `x5c`, `x5u`) are ignored, because the
/// sender of the token chooses them.
#[derive(Debug)]
pub(super) struct Unverified {
    /// Algorithm in the header of the token (`alg`).
    pub(super) algorithm: Algorithm,
    /// Key id in the header of the token (`kid`).
    pub(super) key: Option<String>,
    /// Issuer in the claims of the token (`iss`).
    pub(super) iss: String,
}

#[derive(Deserialize)]
struct Issued {
    iss: String,
}

impl Unverified {
    /// Parses a token. The error text is a predicate, such as "has 9000 bytes"; the caller prepends the subject. It contains no
    /// part of the token.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("has {} bytes; at most {MAX_BYTES} are read", text.len()));
        }
        let Header { typ, alg, kid, crit, .. } = decode_header(text).map_err(|error| match error.kind() {
            ErrorKind::InvalidToken => "does not have the three parts HEADER.CLAIMS.SIGNATURE",
            _ => "has a header that cannot be read, or one with an algorithm (alg) that is not supported",
        })?;
        // `crit` lists extensions that the reader of a token must support. This broker supports none.
        if crit.is_some() {
            return Err("has the header parameter crit, which is not supported".into());
        }
        if !typ.as_deref().is_none_or(is_credential) {
            return Err("has a header parameter typ other than JWT and at+jwt".into());
        }
        let Issued { iss } =
            insecure_decode_claims(text).map_err(|_| "has claims that cannot be read, or no issuer (iss)")?;
        Ok(Self { algorithm: alg, key: kid, iss })
    }
}

/// Whether a token of this type is a credential. Issuers also sign other tokens, such as logout tokens, and mark them by their
/// type (RFC 8725, 3.11).
fn is_credential(typ: &str) -> bool {
    let typ = typ.to_ascii_lowercase();
    matches!(typ.strip_prefix("application/").unwrap_or(&typ), "jwt" | "at+jwt")
}

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
    use proptest::prelude::*;
    use serde_json::json;
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::credentials::jwt::{
        key::KeySet,
        now,
        signing::{SigningKey, compact, encoded},
    };

    fn token(header: &str, claims: &str) -> String {
        format!("{}.{}.c2ln", encoded(header), encoded(claims))
    }

    #[test]
    fn a_token_names_its_algorithm_its_key_and_its_issuer() {
        let text = token(r#"{"alg":"ES256","kid":"k","typ":"application/AT+JWT","x":{}}"#, r#"{"iss":"i"}"#);
        let read = Unverified::parse(&text).unwrap();
        assert_eq!((read.algorithm, read.key.as_deref(), read.iss.as_str()), (Algorithm::ES256, Some("k"), "i"));
        let read = Unverified::parse(&token(r#"{"alg":"EdDSA"}"#, r#"{"iss":"i"}"#)).unwrap();
        assert_eq!((read.algorithm, read.key), (Algorithm::EdDSA, None));
    }

    #[test]
    fn an_invalid_token_is_refused_with_the_reason() {
        let (header, claims) = (r#"{"alg":"ES256"}"#, r#"{"iss":"i"}"#);
        let good = token(header, claims);
        assert!(Unverified::parse(&good).is_ok());
        for (text, problem) in [
            (String::new(), "three parts"),
            ("a".into(), "three parts"),
            ("a.b".into(), "three parts"),
            (format!("{good}.x"), "header"),
            (format!("={good}"), "header"),
            (token("[]", claims), "header"),
            (token("{}", claims), "header"),
            (token(r#"{"alg":"none"}"#, claims), "header"),
            (token(r#"{"alg":"None"}"#, claims), "header"),
            (token(r#"{"alg":""}"#, claims), "header"),
            (token(r#"{"alg":7}"#, claims), "header"),
            (token(r#"{"alg":["ES256"]}"#, claims), "header"),
            (token(r#"{"alg":"ES256","alg":"none"}"#, claims), "header"),
            (token(r#"{"alg":"ES256","kid":7}"#, claims), "header"),
            (token(r#"{"alg":"ES256","crit":["b64"],"b64":false}"#, claims), "crit"),
            (token(r#"{"alg":"ES256","typ":"logout+jwt"}"#, claims), "typ"),
            (token(r#"{"alg":"ES256","typ":7}"#, claims), "header"),
            (token(header, r#"{"iss":"i"} x"#), "claims"),
            (token(header, "1"), "claims"),
            (token(header, "{}"), "no issuer"),
            (token(header, r#"{"iss":["i"]}"#), "no issuer"),
            (token(header, &format!("{{\"iss\":\"{}\"}}", "x".repeat(MAX_BYTES))), "at most 8192"),
            (token(header, &"[".repeat(4_000)), "claims"),
        ] {
            let error = Unverified::parse(&text).unwrap_err();
            assert!(error.contains(problem), "{text} {problem}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}", header in "\\PC{0,40}", claims in "\\PC{0,40}") {
            let _ = Unverified::parse(&text);
            let _ = Unverified::parse(&token(&header, &claims));
        }
    }

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
