//! Connections of clients with certificates. They end when the certificate expires or is revoked.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rustls::{
    pki_types::{CertificateDer, UnixTime},
    server::danger::ClientCertVerifier,
};
use tokio_util::sync::CancellationToken;

use super::{PeerIdentity, certificate};

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

/// A client with a valid certificate. Its connection is monitored until this is dropped.
pub(crate) struct PeerCertificate {
    /// Identity from the certificate.
    pub(crate) identity: PeerIdentity,
    /// Cancelled when the certificate becomes invalid, or when the broker closes all connections.
    pub(crate) ended: CancellationToken,
    number: u64,
    clients: Arc<OpenClients>,
}

impl OpenClients {
    /// Starts to monitor a connection. The error tells why the certificate is unusable.
    pub(super) fn enter(
        self: &Arc<Self>,
        chain: &[CertificateDer<'static>],
        cut: &CancellationToken,
    ) -> Result<PeerCertificate, String> {
        let first = chain.first().ok_or("the certificate chain is empty")?;
        let identity = PeerIdentity::in_certificate(first)
            .ok_or("it contains no name: it needs a URI or a DNS name as subject alternative name")?;
        let expires = certificate::expires(first)?;
        let (number, ended) = (self.last.fetch_add(1, Ordering::Relaxed), cut.child_token());
        self.open.lock().insert(number, Open { chain: chain.to_vec(), expires, ended: ended.clone() });
        Ok(PeerCertificate { identity, ended, number, clients: self.clone() })
    }

    /// Ends the connections of expired certificates, and after a change of the files, of certificates that are no longer valid.
    /// Returns their number.
    pub(super) fn end(&self, verifier: Option<&Arc<dyn ClientCertVerifier>>) -> usize {
        let now = UnixTime::now();
        let is_bad = |open: &Open| {
            let verify = |verifier: &Arc<dyn ClientCertVerifier>| {
                let (first, above) = open.chain.split_first()?;
                verifier.verify_client_cert(first, above, now).ok()
            };
            open.expires < now.as_secs() || verifier.is_some_and(|verifier| verify(verifier).is_none())
        };
        // Verification is slow, so the lock is held for one connection at a time. Connections open and close meanwhile.
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
