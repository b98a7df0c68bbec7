//! Counts failed TLS handshakes by reason, and logs them at most once a second per kind of reason.

use std::{io, net::SocketAddr};

use howdah_core::logging::Throttle;
use howdah_engine::metrics::{ByReason, TlsMetrics};
use parking_lot::Mutex;
use rustls::{AlertDescription, CertificateError};

/// Reason of a failed TLS handshake.
#[derive(Debug)]
pub(super) enum Failure {
    /// The client closed the connection: a port scan, or a client that does not trust the broker's certificate.
    Closed,
    /// The handshake exceeded its time limit.
    Late,
    /// The client does not use TLS.
    Plaintext,
    /// The client does not offer HTTP/2 (ALPN).
    NoHttp2,
    /// The client has no certificate, or an invalid one.
    Client(String),
    /// Any other error.
    Other(String),
}

impl Failure {
    /// Converts the I/O error of a connection, which may contain an error of rustls.
    pub(super) fn new(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            None => Self::Closed,
            Some(rustls::Error::NoApplicationProtocol) => Self::NoHttp2,
            Some(rustls::Error::AlertReceived(AlertDescription::UnknownCA)) => {
                Self::Other("the client does not know the authority of the broker's certificate".into())
            }
            Some(error) => Self::Other(error.to_string()),
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Late => "timeout",
            Self::Plaintext => "plaintext",
            Self::NoHttp2 => "alpn",
            Self::Client(_) => "client_certificate",
            Self::Other(_) => "other",
        }
    }
}

/// Describes why a client certificate was refused.
pub(super) fn of_certificate(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "no authority of the broker has signed it".into()
        }
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => "it is revoked".into(),
        rustls::Error::InvalidCertificate(CertificateError::UnknownRevocationStatus) => {
            "tls_client_crl has no revocation list of its authority".into()
        }
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "it has expired".into()
        }
        error => error.to_string(),
    }
}

/// Counters and log throttles for the failed handshakes of a port.
pub(super) struct Failures {
    port: &'static str,
    metrics: TlsMetrics,
    plaintext: Mutex<Throttle>,
    client: Mutex<Throttle>,
    other: Mutex<Throttle>,
}

impl Failures {
    pub(super) fn new(port: &'static str, metrics: TlsMetrics) -> Self {
        Self { port, metrics, plaintext: Mutex::default(), client: Mutex::default(), other: Mutex::default() }
    }

    /// Counts the failed handshake, and logs it if the throttle permits.
    pub(super) fn report(&self, failure: &Failure, peer: Option<SocketAddr>) {
        self.metrics.failed_handshakes.get_or_create(&ByReason { reason: failure.label() }).inc();
        let port = self.port;
        let peer = peer.map(|peer| peer.ip().to_string()).unwrap_or_default();
        let due = |throttle: &Mutex<Throttle>| throttle.lock().count();
        match failure {
            Failure::Closed | Failure::Late => {
                tracing::debug!(port, peer, reason = failure.label(), "a client did not complete the TLS handshake");
            }
            Failure::Plaintext => {
                if let Some(times) = due(&self.plaintext) {
                    tracing::warn!(port, peer, times, "a client connected without TLS; this port needs https://");
                }
            }
            Failure::Client(why) => {
                if let Some(times) = due(&self.client) {
                    tracing::warn!(port, peer, times, %why, "refused a client because of its certificate");
                }
            }
            Failure::NoHttp2 => {
                if let Some(times) = due(&self.other) {
                    tracing::warn!(
                        port,
                        peer,
                        times,
                        "closed a TLS connection: its client does not offer the protocol of this port (ALPN)"
                    );
                }
            }
            Failure::Other(why) => {
                if let Some(times) = due(&self.other) {
                    tracing::info!(port, peer, times, %why, "a TLS handshake failed");
                }
            }
        }
    }
}
