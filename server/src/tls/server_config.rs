//! The files in force, as rustls wants them: one configuration for each port.

use std::sync::Arc;

use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, CertificateRevocationListDer},
    server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};

use super::{Port, certificate, files::Files, files::problem};
use crate::config::TlsFiles;

/// The keys of session tickets. They outlive a change of the certificate, so that clients resume across it. Each port has
/// its own: a client without a certificate may have a ticket of the HTTP port, which must not open the gRPC port.
pub(super) struct Tickets {
    grpc: Arc<dyn ProducesTickets>,
    http: Arc<dyn ProducesTickets>,
}

impl Tickets {
    pub(super) fn new() -> Result<Self, String> {
        let new =
            || aws_lc_rs::Ticketer::new().map_err(|error| format!("no random bytes for session tickets: {error}"));
        Ok(Self { grpc: new()?, http: new()? })
    }
}

/// What new connections are served with.
pub(super) struct InForce {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    /// When the certificate expires, in seconds of Unix time.
    pub(super) expires: u64,
    /// What checks the certificates of clients.
    pub(super) clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl InForce {
    /// An error names the flag, the file and what to do.
    pub(super) fn new(files: &Files, paths: &TlsFiles, tickets: &Tickets) -> Result<Self, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain = files.chain(paths)?;
        let first = chain.first().map_or(Err(String::new()), certificate::expires);
        let expires = first.map_err(|why| problem("--tls-cert", paths.cert.as_deref(), &why))?;
        let certified = CertifiedKey::from_der(chain, files.key(paths)?, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => problem(
                "--tls-key",
                paths.key.as_deref(),
                &format!(
                    "does not belong to the certificate of {}; give the key that the certificate was made for",
                    problem("--tls-cert", paths.cert.as_deref(), "").trim_end_matches(": ")
                ),
            ),
            error => problem("--tls-key", paths.key.as_deref(), &format!("cannot be used: {error}")),
        })?;
        let roots = files.authorities(paths)?.map(|certs| roots(certs, paths)).transpose()?.map(Arc::new);
        let revoked = files.revoked(paths)?;
        let certified = Arc::new(SingleCertAndKey::from(certified));
        let mut clients = None;
        let mut config = |port| {
            let verifier = verifier(port, roots.as_ref(), &revoked, &provider)
                .map_err(|why| problem("--tls-client-crl", paths.client_crl.as_deref(), &why))?;
            if roots.is_some() {
                clients = Some(verifier.clone());
            }
            let builder = ServerConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .map_err(|error| error.to_string())?;
            let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(certified.clone());
            let (protocol, ticketer): (&[u8], _) = match port {
                Port::Grpc => (b"h2", &tickets.grpc),
                Port::Http => (b"http/1.1", &tickets.http),
            };
            config.alpn_protocols = vec![protocol.to_vec()];
            // Tickets cost no memory here, and work across a change of the files.
            config.ticketer = ticketer.clone();
            config.session_storage = Arc::new(NoServerSessionStorage {});
            Ok::<_, String>(Arc::new(config))
        };
        let (http, grpc) = (config(Port::Http)?, config(Port::Grpc)?);
        Ok(Self { grpc, http, expires, clients })
    }

    pub(super) fn of(&self, port: Port) -> Arc<ServerConfig> {
        match port {
            Port::Grpc => self.grpc.clone(),
            Port::Http => self.http.clone(),
        }
    }
}

fn roots(certs: Vec<CertificateDer<'static>>, paths: &TlsFiles) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for cert in certs {
        roots.add(cert).map_err(|error| {
            problem("--tls-client-ca", paths.client_ca.as_deref(), &format!("has an unusable certificate: {error}"))
        })?;
    }
    Ok(roots)
}

/// Checks the certificates of clients. The gRPC port wants one; the HTTP port also takes clients without, since probes
/// have none, and refuses them where it matters.
fn verifier(
    port: Port,
    roots: Option<&Arc<RootCertStore>>,
    revoked: &[CertificateRevocationListDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let Some(roots) = roots else { return Ok(WebPkiClientVerifier::no_client_auth()) };
    let builder =
        WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).with_crls(revoked.iter().cloned());
    let builder = if port == Port::Http { builder.allow_unauthenticated() } else { builder };
    builder.build().map_err(|error| format!("cannot be used: {error}"))
}
