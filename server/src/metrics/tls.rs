//! TLS of both ports.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// Label of failed handshakes, and of refused calls.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByReason {
    /// `unauthenticated` or `permission_denied`. Of a span: `collector`, `queue` or `attempts`. Of a handshake: `closed`, `timeout`, `plaintext`, `alpn`, `client_certificate` or `other`.
    pub reason: &'static str,
}

/// Metrics of TLS. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TlsMetrics {
    /// When the certificate in force expires, in seconds of Unix time.
    pub expires: Gauge,
    /// Changed files that were put in force.
    pub reloads: Counter,
    /// Changed files that could not be used.
    pub reload_failures: Counter,
    /// Connections without a handshake, by reason.
    pub failed_handshakes: Family<ByReason, Counter>,
}

impl TlsMetrics {
    /// Adds them to a registry.
    pub fn register(&self, r: &mut Registry) {
        r.register_with_unit(
            "tls_certificate_expires",
            "When the broker's certificate expires, in Unix time; 0: the broker serves without TLS",
            Unit::Seconds,
            self.expires.clone(),
        );
        r.register("tls_reloads", "Changed TLS files that were put in force", self.reloads.clone());
        r.register(
            "tls_reload_failures",
            "Changed TLS files that could not be used, so that the old ones stayed in force",
            self.reload_failures.clone(),
        );
        r.register(
            "tls_handshake_failures",
            "Connections closed without a TLS handshake: closed (by the client), timeout, plaintext, alpn, client_certificate, other",
            self.failed_handshakes.clone(),
        );
    }
}
