//! Metrics of TLS on both ports.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// Label with the reason of a failed TLS handshake, a rejected call or a dropped span.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByReason {
    /// Reason. For calls `unauthenticated` or `permission_denied`; for spans `collector`, `queue` or `attempts`; for
    /// handshakes `closed`, `timeout`, `plaintext`, `alpn`, `client_certificate` or `other`.
    pub reason: &'static str,
}

/// Metrics of TLS. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TlsMetrics {
    /// Expiry time of the broker's active certificate, in seconds of Unix time.
    pub expires: Gauge,
    /// Number of times that changed certificate files were loaded.
    pub reloads: Counter,
    /// Number of times that changed certificate files were invalid.
    pub reload_failures: Counter,
    /// Number of connections whose TLS handshake failed, by reason.
    pub failed_handshakes: Family<ByReason, Counter>,
}

impl TlsMetrics {
    pub fn register(&self, r: &mut Registry) {
        r.register_with_unit(
            "tls_certificate_expires",
            "When the broker's certificate expires, in Unix time; 0: the broker serves without TLS",
            Unit::Seconds,
            self.expires.clone(),
        );
        r.register("tls_reloads", "Changed TLS files that were activated", self.reloads.clone());
        r.register(
            "tls_reload_failures",
            "Changed TLS files that were invalid, so that the old ones stayed active",
            self.reload_failures.clone(),
        );
        r.register(
            "tls_handshake_failures",
            "Connections closed without a TLS handshake: closed (by the client), timeout, plaintext, alpn, client_certificate, other",
            self.failed_handshakes.clone(),
        );
    }
}
