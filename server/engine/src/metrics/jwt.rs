//! Metrics of reading the public keys of JSON Web Token issuers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// Label of metrics per issuer.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByIssuer {
    /// Name of the issuer in the file of issuers.
    pub issuer: String,
}

/// Metrics of JSON Web Tokens. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct JwtMetrics {
    /// Number of reads of an issuer's keys.
    pub key_reads: Family<ByIssuer, Counter>,
    /// Number of failed reads of an issuer's keys.
    pub key_read_failures: Family<ByIssuer, Counter>,
    /// Time of the last successful read of an issuer's keys, in seconds of Unix time.
    pub keys_read_at: Family<ByIssuer, Gauge>,
}

impl JwtMetrics {
    pub fn register(&self, r: &mut Registry) {
        r.register("jwt_key_reads", "Reads of the keys of an issuer of JSON Web Tokens", self.key_reads.clone());
        r.register(
            "jwt_key_read_failures",
            "Failed reads of an issuer's keys; the known keys stay valid",
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
