//! The keys of issuers of JSON Web Tokens.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// Label of metrics by issuer.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByIssuer {
    /// Its name in the file of issuers.
    pub issuer: String,
}

/// Metrics of JSON Web Tokens. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct JwtMetrics {
    /// Reads of keys.
    pub key_reads: Family<ByIssuer, Counter>,
    /// Reads that failed.
    pub key_read_failures: Family<ByIssuer, Counter>,
    /// When keys were last read, in seconds of Unix time.
    pub keys_read_at: Family<ByIssuer, Gauge>,
}

impl JwtMetrics {
    /// Adds them to a registry.
    pub fn register(&self, r: &mut Registry) {
        r.register("jwt_key_reads", "Reads of the keys of an issuer of JSON Web Tokens", self.key_reads.clone());
        r.register(
            "jwt_key_read_failures",
            "Reads of an issuer's keys that failed; the keys that were known stay in force",
            self.key_read_failures.clone(),
        );
        r.register_with_unit(
            "jwt_keys_read_at",
            "When the keys of an issuer were last read, in Unix time",
            Unit::Seconds,
            self.keys_read_at.clone(),
        );
    }
}
