//! rustls configurations that are built from the TLS files, one per port.
//!
//! The verification of client certificates is deferred. The handshake accepts any certificate or none. The certificate is
//! verified right after the handshake, before a byte is read. So the client can get an error text, and one place verifies the
//! certificates of full and resumed handshakes. The handshake itself verifies that the client has the private key.

use std::sync::Arc;

use howdah_core::config::TlsFiles;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime},
    server::{
        NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::{CertifiedKey, SingleCertAndKey},
};

use crate::tls::{
    Port, clients,
    files::{Files, problem},
};

/// Keys of TLS session tickets. They stay the same when the certificate changes, so that clients can still resume
/// sessions. Each port has its own key, so a session of one port is invalid on the other.
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

/// The active configuration, for new connections.
pub(super) struct InForce {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    /// Expiry time of the broker's certificate, in seconds of Unix time.
    pub(super) expires: u64,
    /// Verifier of client certificates; `None` if the ports do not ask for them.
    pub(super) clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl InForce {
    /// Builds the rustls configurations. An error names the flag, the file and the remedy.
    pub(super) fn new(files: &Files, paths: &TlsFiles, tickets: &Tickets) -> Result<Self, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain = files.chain(paths)?;
        let first = chain.first().map_or(Err(String::new()), clients::expires);
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
        let clients = roots.map(|roots| verifier(&roots, &revoked, &provider)).transpose();
        let clients = clients.map_err(|why| problem("--tls-client-crl", paths.client_crl.as_deref(), &why))?;
        let verifier: Arc<dyn ClientCertVerifier> = match clients.clone() {
            Some(clients) => Arc::new(Deferred(clients)),
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let config = |port| {
            let builder = ServerConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .map_err(|error| error.to_string())?;
            let mut config = builder.with_client_cert_verifier(verifier.clone()).with_cert_resolver(certified.clone());
            let (protocol, ticketer): (&[u8], _) = match port {
                Port::Grpc => (b"h2", &tickets.grpc),
                Port::Http => (b"http/1.1", &tickets.http),
            };
            config.alpn_protocols = vec![protocol.to_vec()];
            // Sessions are resumed by tickets, which need no memory at the broker and survive a change of the files.
            config.ticketer = ticketer.clone();
            config.session_storage = Arc::new(NoServerSessionStorage {});
            Ok::<_, String>(Arc::new(config))
        };
        let (http, grpc) = (config(Port::Http)?, config(Port::Grpc)?);
        Ok(Self { grpc, http, expires, clients })
    }

    pub(super) fn for_port(&self, port: Port) -> Arc<ServerConfig> {
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

/// Creates the verifier of client certificates.
fn verifier(
    roots: &Arc<RootCertStore>,
    revoked: &[CertificateRevocationListDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    builder.with_crls(revoked.iter().cloned()).build().map_err(|error| format!("cannot be used: {error}"))
}

/// Certificate verifier that accepts every client certificate and checks only handshake signatures.
#[derive(Debug)]
pub(super) struct Deferred(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Deferred {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
