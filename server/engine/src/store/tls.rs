//! TLS connections to Postgres with rustls, according to `sslmode`.

use std::{path::Path, sync::Arc};

use howdah_core::config::{Dsn, TlsVersion, Verify};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Creates the TLS connector for a connection string. An error names the invalid file.
pub(super) fn connector(dsn: &Dsn) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(Verifier {
        inner: match dsn.verify {
            Verify::No => None,
            Verify::Authority | Verify::Full => Some(
                WebPkiServerVerifier::builder_with_provider(
                    Arc::new(roots(dsn.root_cert.as_deref())?),
                    provider.clone(),
                )
                .with_crls(dsn.crl.as_deref().map(read_crls).transpose()?.unwrap_or_default())
                .build()
                .map_err(|error| format!("sslrootcert: {error}"))?,
            ),
        },
        any_name: dsn.verify != Verify::Full,
        provider: provider.clone(),
    });
    let (lowest, highest) = dsn.tls_versions;
    let all = [(TlsVersion::V12, &rustls::version::TLS12), (TlsVersion::V13, &rustls::version::TLS13)];
    let versions: Vec<_> = all
        .into_iter()
        .filter(|(version, _)| (lowest..=highest).contains(version))
        .map(|(_, version)| version)
        .collect();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &dsn.client_cert {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let certs = read_certs(cert, "sslcert")?;
            let key =
                PrivateKeyDer::from_pem_file(key).map_err(|error| format!("sslkey {}: {error}", key.display()))?;
            builder.with_client_auth_cert(certs, key).map_err(|error| format!("sslcert: {error}"))?
        }
    };
    // Servers require ALPN for direct TLS (`sslnegotiation=direct`). With the usual negotiation they ignore it.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    config.enable_sni = dsn.sends_name;
    Ok(MakeRustlsConnect::new(config))
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    let certs = match file {
        Some(file) => read_certs(file, "sslrootcert")?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = store.add_parsable_certificates(certs);
    if added == 0 {
        let location = file.map_or_else(|| "the system's store".into(), |f| f.display().to_string());
        return Err(format!("sslrootcert: no usable certificate in {location}"));
    }
    Ok(store)
}

fn read_certs(file: &Path, option: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{option} {}: {error}", file.display()))
}

fn read_crls(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    CertificateRevocationListDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| format!("sslcrl {}: {error}", file.display()))
}

/// Verifier of server certificates with the modes of libpq: no check, check of the authority, or check of authority and
/// host name.
#[derive(Debug)]
struct Verifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    any_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
