//! JWT issuers whose keys are in files, and a broker that trusts these issuers.

use std::time::{SystemTime, UNIX_EPOCH};

use howdah_core::config::Config;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::signing::{SigningKey, key_set};
use crate::support::*;

/// JWT issuers `corp` and `other`, their signing keys, and the directory with their key files.
pub struct Issuers {
    directory: TempDir,
    /// Signing keys of the issuer `corp`, with the algorithms ES256, EdDSA and RS256.
    pub keys: [SigningKey; 3],
    /// Signing key of the issuer `other`, with the same key id as the first key of `corp`.
    pub other: SigningKey,
}

impl Issuers {
    pub fn new() -> Self {
        let keys =
            [("ES256", "ec"), ("EdDSA", "ed"), ("RS256", "rsa")].map(|(algorithm, id)| SigningKey::new(algorithm, id));
        let issuers = Self { directory: tempfile::tempdir().unwrap(), keys, other: SigningKey::new("ES256", "ec") };
        issuers.publish(&issuers.keys.each_ref());
        std::fs::write(issuers.path("other.json"), key_set(&[&issuers.other])).unwrap();
        let text = format!(
            "[[issuer]]\nname = 'corp'\niss = 'https://corp.example'\naudience = 'howdah'\nleeway = '0s'\n\
             algorithms = ['ES256', 'EdDSA', 'RS256']\njwks = '{}'\n\
             [[issuer.grant]]\nprincipal = 'ci-*'\nscopes = 'enqueue:ci.*'\n\
             [[issuer]]\nname = 'other'\niss = 'https://other.example'\naudience = 'howdah'\n\
             algorithms = 'ES256'\njwks = '{}'\nmax_scopes = ['enqueue:other.*']\n",
            issuers.path("corp.json"),
            issuers.path("other.json")
        );
        std::fs::write(issuers.file(), text).unwrap();
        issuers
    }

    /// Adds an issuer whose keys are at the URL or path `jwks`.
    pub fn also(&mut self, name: &str, jwks: &str) {
        let text = std::fs::read_to_string(self.file()).unwrap();
        let more = format!(
            "[[issuer]]\nname = '{name}'\niss = 'https://{name}.example'\naudience = 'howdah'\n\
             algorithms = 'ES256'\njwks = '{jwks}'\n"
        );
        std::fs::write(self.file(), text + &more).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Path of the configuration file with the issuers.
    pub fn file(&self) -> String {
        self.path("jwt.toml")
    }

    /// Replaces the published keys of the issuer `corp`.
    pub fn publish(&self, keys: &[&SigningKey]) {
        // Renames a new file, because a broker may read the published file at any time.
        std::fs::write(self.path("new"), key_set(keys)).unwrap();
        std::fs::rename(self.path("new"), self.path("corp.json")).unwrap();
    }

    /// Starts a broker that accepts only tokens of these issuers.
    pub async fn broker(&self) -> TestBroker {
        self.broker_with(|_| {}).await
    }

    /// Starts a broker with changed settings that accepts only tokens of these issuers.
    pub async fn broker_with(&self, change: impl FnOnce(&mut Config)) -> TestBroker {
        TestBroker::start_with(|config| {
            config.auth.jwt = true;
            config.auth_jwt_file = Some(self.file().into());
            change(config);
        })
        .await
    }

    /// Returns a token of the issuer `corp` for this subject with these scopes.
    pub fn token(&self, subject: &str, scopes: &str) -> String {
        self.keys[0].token(&claims(subject, scopes))
    }
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Returns the claims of a token of the issuer `corp`.
pub fn claims(subject: &str, scopes: &str) -> Value {
    json!({ "iss": "https://corp.example", "aud": "howdah", "exp": now() + 600, "sub": subject, "scope": scopes })
}
