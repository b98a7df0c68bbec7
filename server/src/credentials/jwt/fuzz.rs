//! Entry points for fuzzers: unsigned tokens, tokens with arbitrary claims signed by their issuer, and key sets.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use howdah_engine::access::{Grant, PRINCIPAL_BYTES};
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use serde_json::Value;

use super::{claims, claims::Unverified, file, grant, issuer::Issuer, key::KeySet, now};

const ISSUERS: &str = "[[issuer]]\nname = 'fuzz'\niss = 'i'\naudience = 'howdah'\njwks = '/keys'\n\
                       algorithms = ['EdDSA', 'ES256', 'RS256']\nmax_scopes = ['enqueue:mail.*', 'read:*']\n\
                       [[issuer.grant]]\nprincipal = 'ci-*'\nscopes = 'work:ci.*'";
/// The published example key of RFC 8037, appendix A.
const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
/// The private key of RFC 8037, appendix A, as PKCS #8.
const PRIVATE: [u8; 48] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20\
    \x9d\x61\xb1\x9d\xef\xfd\x5a\x60\xba\x84\x4a\xf4\x92\xec\x2c\xc4\
    \x44\x49\xc5\x69\x7b\x32\x69\x19\x70\x3b\xac\x03\x1c\xae\x7f\x60";

static TRUSTED: LazyLock<Result<(Issuer, KeySet), String>> = LazyLock::new(|| {
    let (issuer, _) = file::parse(ISSUERS)?.pop().ok_or("no issuer")?;
    let keys = KeySet::parse(KEYS.as_bytes(), &issuer.algorithms)?;
    Ok((issuer, keys))
});

/// Fuzzes the parsers of tokens and key sets with a text. Also uses its lines 1 to 3 as header, claims and key set, and
/// verifies a signed token of lines 1 and 2.
pub(crate) fn read(text: &str) {
    let trusted = TRUSTED.as_ref();
    assert!(trusted.is_ok_and(|(_, keys)| keys.keys.len() == 1), "{:?}", trusted.err());
    let Ok((issuer, keys)) = trusted else { return };
    assert!(granted(issuer, keys, text).is_err(), "accepted an unsigned token");
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let (header, claims) = (line(), line());
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let key = EncodingKey::from_ed_der(&PRIVATE);
    let signature = crypto::sign(signed.as_bytes(), &key, Algorithm::EdDSA).unwrap_or_default();
    assert!(!signature.is_empty(), "the issuer can sign");
    let token = format!("{signed}.{signature}");
    if let Ok((grant, ends)) = granted(issuer, keys, &token) {
        check(issuer, claims, &grant, ends);
    }
    // Error texts are sent to callers and logged, so they must be too short to contain the input.
    for problem in [Unverified::parse(text).err(), Unverified::parse(&token).err()].into_iter().flatten() {
        assert!(problem.len() < 120, "{problem}");
    }
    let sets = [text, line()].map(|keys| KeySet::parse(keys.as_bytes(), &issuer.algorithms));
    for set in sets.into_iter().flatten() {
        assert!(set.unusable.iter().all(|problem| problem.len() < 120), "{:?}", set.unusable);
        for key in &set.keys {
            assert!(key.is_same(key) && issuer.algorithms.contains(&key.algorithm), "{key:?}");
            assert!(set.find(key.algorithm, key.id.as_deref()).is_some() || key.id.is_none(), "{key:?}");
            let _ = claims::verify(issuer, key, &token);
        }
    }
}

/// Verifies a token in the same steps as `authenticate`.
fn granted(issuer: &Issuer, keys: &KeySet, token: &str) -> Result<(Grant, u64), String> {
    let read = Unverified::parse(token)?;
    if read.iss != issuer.iss || !issuer.algorithms.contains(&read.algorithm) {
        return Err("another issuer or algorithm".into());
    }
    let key = keys.find(read.algorithm, None).ok_or("another algorithm")?;
    grant(issuer, key, token).map(|(grant, _, ends)| (grant, ends))
}

/// Checks that an accepted token has the required claims and gets no more scopes than its issuer may grant.
fn check(issuer: &Issuer, claims: &str, grant: &Grant, ends: u64) {
    let claims: claims::Claims = serde_json::from_str(claims).unwrap_or_default();
    let is_for_us = |aud: &Value| aud == "howdah" || aud.as_array().is_some_and(|all| all.contains(&"howdah".into()));
    let audience = claims.get("aud").is_some_and(is_for_us);
    assert!(claims.get("iss").is_some_and(|iss| *iss == *issuer.iss) && audience, "{claims:?}");
    // Two seconds of tolerance: for rounding, and for the time since the token was verified.
    assert!(claims.get("exp").is_some_and(Value::is_number) && ends + 2 >= now(), "{claims:?}");
    let longest = issuer.max_lifetime + 2 * issuer.leeway;
    assert!(ends <= now() + longest.as_secs() + 2, "{claims:?}");
    let principal = &grant.principal;
    assert!(principal.starts_with("jwt:fuzz:") && principal.len() <= PRINCIPAL_BYTES, "{principal}");
    assert!(principal.chars().all(|letter| letter.is_ascii_graphic()), "{principal}");
    for scope in grant.rights.scopes() {
        let text = scope.to_string();
        let is_of_token = text.starts_with("enqueue:mail.") || text.starts_with("read:");
        let is_of_file = text == "work:ci.*" && principal.starts_with("jwt:fuzz:ci-");
        assert!(is_of_token || is_of_file, "{text}: {claims:?}");
    }
}
