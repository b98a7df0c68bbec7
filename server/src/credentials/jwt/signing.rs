//! Private signing keys of a test issuer. The integration tests include this file.

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

enum Pair {
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
    Rs256(RsaKeyPair),
}

/// A key that signs tokens.
pub(crate) struct SigningKey {
    pair: Pair,
    id: String,
}

/// Encodes bytes in base64url without padding, as in tokens and keys.
pub(crate) fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Joins the parts of a token.
pub(crate) fn compact(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let signed = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
    let signature = encoded(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

impl SigningKey {
    /// Generates a key with this key id, for `ES256`, `EdDSA` or `RS256`.
    pub(crate) fn new(algorithm: &str, id: &str) -> Self {
        let pair = match algorithm {
            "ES256" => Pair::Es256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()),
            "EdDSA" => Pair::EdDsa(Ed25519KeyPair::generate().unwrap()),
            "RS256" => Pair::Rs256(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()),
            other => panic!("no key for {other}"),
        };
        Self { pair, id: id.to_owned() }
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Es256(_) => "ES256",
            Pair::EdDsa(_) => "EdDSA",
            Pair::Rs256(_) => "RS256",
        }
    }

    /// Returns the public key as a JWK.
    pub(crate) fn jwk(&self) -> Value {
        let mut jwk = match &self.pair {
            Pair::Es256(pair) => {
                let point = pair.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "x": encoded(&point[1..33]), "y": encoded(&point[33..]) })
            }
            Pair::EdDsa(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encoded(pair.public_key()) })
            }
            Pair::Rs256(pair) => {
                let public = pair.public_key();
                let number = |bytes: &[u8]| encoded(bytes);
                let (n, e) = (public.modulus(), public.exponent());
                json!({
                    "kty": "RSA",
                    "n": number(n.big_endian_without_leading_zero()),
                    "e": number(e.big_endian_without_leading_zero()),
                })
            }
        };
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk
    }

    pub(crate) fn sign(&self, text: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Es256(pair) => pair.sign(&random, text).unwrap().as_ref().to_vec(),
            Pair::EdDsa(pair) => pair.sign(text).as_ref().to_vec(),
            Pair::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, text, &mut signature).unwrap();
                signature
            }
        }
    }

    /// Returns the header of a token signed with this key.
    pub(crate) fn header(&self) -> Value {
        json!({ "alg": self.algorithm(), "kid": self.id, "typ": "JWT" })
    }

    /// Signs a token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        compact(&self.header(), claims, |text| self.sign(text))
    }
}

/// Returns the public keys as a JWK Set, the form in which issuers publish keys.
pub(crate) fn key_set(keys: &[&SigningKey]) -> String {
    json!({ "keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>() }).to_string()
}
