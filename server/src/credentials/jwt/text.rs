//! Parses the unverified parts of a JSON Web Token that are needed to find its key.

use jsonwebtoken::{Algorithm, Header, dangerous::insecure_decode_claims, decode_header, errors::ErrorKind};
use serde::Deserialize;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::credentials::jwt::signing::encoded;

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
}
