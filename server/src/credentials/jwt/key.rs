//! The public keys of an issuer (RFC 7517). The key determines the algorithm, not the token.

use std::{fmt, sync::Arc};

use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse},
};
use serde::Deserialize as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Accepted sizes of RSA keys, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// A public key.
pub(super) struct Key {
    /// Key id, which a token names in its header `kid`.
    pub(super) id: Option<String>,
    pub(super) algorithm: Algorithm,
    pub(super) public: DecodingKey,
    /// Cancelled when the issuer removes the key. All credentials verified with the key then end.
    pub(super) removed: CancellationToken,
    parameters: AlgorithmParameters,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

/// Usable keys of an issuer, with an error text for each unusable key.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    pub(super) keys: Vec<Arc<Key>>,
    pub(super) unusable: Vec<String>,
}

impl KeySet {
    /// Parses a JWK Set. Skips unusable keys, because issuers also have keys for other purposes.
    pub(super) fn parse(json: &[u8], allowed: &[Algorithm]) -> Result<Self, String> {
        let set: Value = serde_json::from_slice(json).map_err(|_| "the document is not JSON")?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("the document has no array \"keys\"")?;
        let mut set = Self::default();
        for (n, jwk) in keys.iter().enumerate() {
            match Key::parse(jwk, allowed) {
                Ok(key) => set.keys.push(Arc::new(key)),
                Err(problem) => set.unusable.push(format!("keys[{n}] {problem}")),
            }
        }
        Ok(set)
    }

    /// Finds the key with this key id. Without a key id, returns the only key with this algorithm, or `None` if there are
    /// several.
    pub(super) fn find(&self, algorithm: Algorithm, id: Option<&str>) -> Option<&Arc<Key>> {
        let mut fits = self.keys.iter().filter(|key| key.algorithm == algorithm);
        match id {
            Some(id) => fits.find(|key| key.id.as_deref() == Some(id)),
            None => fits.next().filter(|_| fits.next().is_none()),
        }
    }
}

impl Key {
    fn parse(jwk: &Value, allowed: &[Algorithm]) -> Result<Self, String> {
        let jwk = Jwk::deserialize(jwk).map_err(|_| "is not a JSON Web Key")?;
        let algorithm = algorithm(&jwk.algorithm).ok_or("is of another kind than EC P-256, OKP Ed25519 or RSA")?;
        if !allowed.contains(&algorithm) {
            return Err(format!("is for {algorithm:?}, which is not in the issuer's algorithms"));
        }
        let public = DecodingKey::from_jwk(&jwk).map_err(|_| "has a number that is not base64url")?;
        check_size(algorithm, public.kind())?;
        let Jwk { common, algorithm: parameters } = jwk;
        if common.key_algorithm.is_some_and(|named| named != KeyAlgorithm::from(algorithm)) {
            return Err(format!("is for another algorithm than {algorithm:?}"));
        }
        let is_for_signatures = common.public_key_use.is_none_or(|purpose| purpose == PublicKeyUse::Signature)
            && common.key_operations.is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        if !is_for_signatures {
            return Err("is not for signatures".into());
        }
        Ok(Self { id: common.key_id, algorithm, public, removed: CancellationToken::new(), parameters })
    }

    /// Whether two keys have the same key material and the same key id.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && self.parameters == other.parameters
    }
}

/// Returns the signature algorithm for a key with these parameters. `None` if the key type is not supported.
fn algorithm(parameters: &AlgorithmParameters) -> Option<Algorithm> {
    match parameters {
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Some(Algorithm::ES256),
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => Some(Algorithm::EdDSA),
        AlgorithmParameters::RSA(_) => Some(Algorithm::RS256),
        _ => None,
    }
}

/// Checks the size of a key. The check runs when the key is loaded, so that a wrong size is logged once and not for each token.
fn check_size(algorithm: Algorithm, key: &DecodingKeyKind) -> Result<(), String> {
    match key {
        DecodingKeyKind::RsaModulusExponent { n, .. } => {
            let n = &n[n.iter().take_while(|byte| **byte == 0).count()..];
            let bits = n.first().map_or(0, |first| n.len() * 8 - first.leading_zeros() as usize);
            if RSA_BITS.contains(&bits) {
                return Ok(());
            }
            Err(format!("has {bits} bits; {} to {} are accepted", RSA_BITS.start(), RSA_BITS.end()))
        }
        DecodingKeyKind::SecretOrDer(bytes) => {
            // P-256: one byte for the encoding of the point, then both coordinates. Ed25519: 32 bytes.
            let size = if algorithm == Algorithm::ES256 { 65 } else { 32 };
            if bytes.len() == size { Ok(()) } else { Err("has coordinates of the wrong size".into()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::credentials::jwt::signing::{SigningKey, encoded};

    const ALL: [Algorithm; 3] = [Algorithm::ES256, Algorithm::EdDSA, Algorithm::RS256];

    fn set(keys: &[Value], allowed: &[Algorithm]) -> KeySet {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes(), allowed).unwrap()
    }

    #[test]
    fn a_key_is_found_by_its_name_and_algorithm_or_if_there_is_one_only() {
        let (a, b) = (SigningKey::new("ES256", "a"), SigningKey::new("EdDSA", "b"));
        let one_each = set(&[a.jwk(), b.jwk()], &ALL);
        assert!(one_each.find(Algorithm::ES256, Some("a")).is_some());
        assert!(one_each.find(Algorithm::EdDSA, Some("a")).is_none(), "the name, but another algorithm");
        assert!(one_each.find(Algorithm::ES256, None).is_some());
        let two = set(&[a.jwk(), SigningKey::new("ES256", "c").jwk()], &ALL);
        assert!(two.find(Algorithm::ES256, None).is_none());
    }

    #[test]
    fn keys_that_cannot_be_used_are_left_out_with_the_reason() {
        let with = |name: &str, value: Value| {
            let mut jwk = SigningKey::new("ES256", "a").jwk();
            jwk[name] = value;
            jwk
        };
        let rsa = |bytes: usize| json!({ "kty": "RSA", "kid": "a", "n": encoded(vec![0xff; bytes]), "e": "AQAB" });
        for (jwk, problem) in [
            (json!({ "kty": "oct", "kid": "a", "k": "c2VjcmV0" }), "another kind"),
            (json!({ "kty": "post-quantum", "kid": "a" }), "another kind"),
            (json!("text"), "not a JSON Web Key"),
            (with("crv", json!("P-384")), "another kind"),
            (with("alg", json!("HS256")), "another algorithm"),
            (with("alg", json!("ES256K")), "another algorithm"),
            (with("use", json!("enc")), "not for signatures"),
            (with("key_ops", json!(["sign"])), "not for signatures"),
            (with("kid", json!(1)), "not a JSON Web Key"),
            (with("x", json!("AAAA")), "wrong size"),
            (with("y", json!("====")), "base64url"),
            (rsa(128), "1024 bits"),
            (rsa(255), "2040 bits"),
            (rsa(2_000), "16000 bits"),
        ] {
            let set = set(&[jwk.clone(), SigningKey::new("ES256", "good").jwk()], &ALL);
            assert!(set.keys.len() == 1 && set.unusable[0].contains(problem), "{jwk}: {:?}", set.unusable);
        }
        let rsa = SigningKey::new("RS256", "a").jwk();
        assert!(
            set(&[rsa], &[Algorithm::ES256]).unusable[0].contains("RS256, which is not in the issuer's algorithms")
        );
        for bad in ["", "[]", "{}", r#"{"keys":{}}"#] {
            assert!(KeySet::parse(bad.as_bytes(), &ALL).is_err(), "{bad}");
        }
    }
}
