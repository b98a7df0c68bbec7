//! Handshakes that failed: counted by reason, and logged at most once a second for each reason.

use std::{io, net::SocketAddr};

use parking_lot::Mutex;
use rustls::{AlertDescription, CertificateError};

use crate::{
    logging::Throttle,
    metrics::{ByReason, TlsMetrics},
};

/// Why there is no TLS connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// The client closed the connection: a probe of the network, or a client that does not trust us.
    Closed,
    /// It took too long.
    Late,
    /// The client speaks no TLS.
    Plaintext,
    /// The client does not say that it speaks HTTP/2.
    NoHttp2,
    /// The client shows no certificate, or a bad one.
    Client(String),
    /// Everything else.
    Other(String),
}

impl Failure {
    /// The error of rustls inside an error of a connection.
    pub(super) fn of(error: &io::Error) -> Self {
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

/// What is wrong with a client's certificate.
pub(super) fn of_certificate(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "no authority of the broker has signed it".into()
        }
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => "it is revoked".into(),
        rustls::Error::InvalidCertificate(CertificateError::UnknownRevocationStatus) => {
            "its authority has no revocation list here (tls_client_crl)".into()
        }
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "it has expired".into()
        }
        error => error.to_string(),
    }
}

/// What a port reports of failed handshakes.
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

    /// Counts it; says it, if a line is due.
    pub(super) fn report(&self, failure: &Failure, peer: Option<SocketAddr>) {
        self.metrics.failed_handshakes.get_or_create(&ByReason { reason: failure.label() }).inc();
        let port = self.port;
        let peer = peer.map(|peer| peer.ip().to_string()).unwrap_or_default();
        let due = |throttle: &Mutex<Throttle>| throttle.lock().ready();
        match failure {
            Failure::Closed | Failure::Late => {
                tracing::debug!(port, peer, reason = failure.label(), "no TLS handshake");
            }
            Failure::Plaintext => {
                if let Some(times) = due(&self.plaintext) {
                    tracing::warn!(port, peer, times, "a client without TLS; it must use https:// on this port");
                }
            }
            Failure::Client(why) => {
                if let Some(times) = due(&self.client) {
                    tracing::warn!(port, peer, times, %why, "refused a client");
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
