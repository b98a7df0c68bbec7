//! Client certificates: the expiry time and the client's name in a certificate. Tracks the connections of clients with
//! certificates, and ends each when its certificate expires or is revoked.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    pki_types::{CertificateDer, UnixTime},
    server::danger::ClientCertVerifier,
};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::Extensions;
use x509_cert::{
    Certificate,
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

/// Maximum length of the client's name in a certificate, in bytes.
const NAME_BYTES: usize = 512;

/// Identity of a client: the name in its certificate, which an authority of `tls_client_ca` has signed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// The first URI among the certificate's subject alternative names, else the first DNS name; never the common name.
    pub name: Arc<str>,
}

impl PeerIdentity {
    /// Returns the identity of a call's client; `None` if the port does not ask for client certificates.
    pub fn get(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Returns the identity in a verified certificate.
    pub(super) fn in_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let (_, SubjectAltName(names)) = certificate.tbs_certificate.get().ok()??;
        let uri = names.iter().find_map(|name| match name {
            GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str()),
            _ => None,
        });
        let dns = || {
            names.iter().find_map(|name| match name {
                GeneralName::DnsName(dns) => Some(dns.as_str()),
                _ => None,
            })
        };
        let name = uri.or_else(dns)?;
        let fits = (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self { name: name.into() })
    }
}

/// Returns the expiry time of a certificate, in seconds of Unix time.
pub(super) fn expires(certificate: &CertificateDer<'_>) -> Result<u64, String> {
    let certificate = Certificate::from_der(certificate).map_err(|error| format!("is not a certificate: {error}"))?;
    Ok(certificate.tbs_certificate.validity.not_after.to_unix_duration().as_secs())
}

pub(super) fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| format!("{seconds} s after 1970"), |time| time.to_string())
}

/// Open connections of clients with certificates.
#[derive(Default)]
pub(super) struct OpenClients {
    last: AtomicU64,
    open: Mutex<HashMap<u64, Open>>,
}

struct Open {
    chain: Vec<CertificateDer<'static>>,
    expires: u64,
    ended: CancellationToken,
}

/// A client with a certificate. Its connection is monitored until this value is dropped.
pub(crate) struct PeerCertificate {
    /// Identity of the client, from its certificate.
    pub(crate) identity: PeerIdentity,
    /// Cancelled when the certificate becomes invalid, or when the broker closes all connections.
    pub(crate) ended: CancellationToken,
    number: u64,
    clients: Arc<OpenClients>,
}

impl OpenClients {
    /// Starts to monitor a client's connection. The error tells why the certificate is unusable.
    pub(super) fn enter(
        self: &Arc<Self>,
        chain: &[CertificateDer<'static>],
        cut: &CancellationToken,
    ) -> Result<PeerCertificate, String> {
        let first = chain.first().ok_or("the certificate chain is empty")?;
        let identity = PeerIdentity::in_certificate(first)
            .ok_or("the certificate has no name: it needs a URI or a DNS name as subject alternative name")?;
        let expires = expires(first)?;
        let (number, ended) = (self.last.fetch_add(1, Ordering::Relaxed), cut.child_token());
        self.open.lock().insert(number, Open { chain: chain.to_vec(), expires, ended: ended.clone() });
        Ok(PeerCertificate { identity, ended, number, clients: self.clone() })
    }

    /// Ends connections whose client certificates have expired. If the files have changed, `verifier` is set, and
    /// connections with certificates that are no longer valid end, too. Returns the number of ended connections.
    pub(super) fn end(&self, verifier: Option<&Arc<dyn ClientCertVerifier>>) -> usize {
        let now = UnixTime::now();
        let is_bad = |open: &Open| {
            let verify = |verifier: &Arc<dyn ClientCertVerifier>| {
                let (first, above) = open.chain.split_first()?;
                verifier.verify_client_cert(first, above, now).ok()
            };
            open.expires < now.as_secs() || verifier.is_some_and(|verifier| verify(verifier).is_none())
        };
        // Verification is slow, so the mutex is locked separately for each connection. Connections may open and close
        // in between.
        let numbers: Vec<u64> = self.open.lock().keys().copied().collect();
        let mut ended = 0;
        for number in numbers {
            let open = self.open.lock();
            let Some(entry) = open.get(&number).filter(|entry| !entry.ended.is_cancelled()) else { continue };
            if is_bad(entry) {
                let token = entry.ended.clone();
                drop(open);
                token.cancel();
                ended += 1;
            }
        }
        ended
    }
}

impl Drop for PeerCertificate {
    fn drop(&mut self) {
        self.clients.open.lock().remove(&self.number);
    }
}

impl std::fmt::Debug for PeerCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.identity.fmt(f)
    }
}
