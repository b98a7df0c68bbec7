//! TLS: trusted authorities and the client certificate.

use std::{fmt, fs, path::Path};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::{Error, Result, error::chain};

/// TLS settings for `https://` addresses. By default, the client trusts the system's root certificates and sends no client
/// certificate.
#[derive(Clone, Default)]
#[must_use = "TLS settings have no effect until they are passed to ClientBuilder::tls"]
pub struct Tls {
    config: ClientTlsConfig,
    ca: Option<Certificate>,
}

impl Tls {
    /// Settings with the system's root certificates and no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends this client certificate to brokers that request one: the certificate, followed by intermediate certificates, and its
    /// private key, both PEM.
    pub fn client_pem(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self { config: self.config.identity(Identity::from_pem(certificate.into(), key.into())), ..self }
    }

    /// Sets the name in the broker's certificate, if it differs from the host of the address.
    pub fn server_name(self, name: impl Into<String>) -> Self {
        Self { config: self.config.domain_name(name), ..self }
    }

    /// Trusts only broker certificates signed by one of these authorities: one or more PEM certificates.
    pub fn ca_pem(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { ca: Some(Certificate::from_pem(pem.into())), ..self }
    }

    /// Trusts only the authorities in this PEM file, like [`ca_pem`](Self::ca_pem).
    pub fn ca_file(self, path: impl AsRef<Path>) -> Result<Self> {
        Ok(self.ca_pem(read(path.as_ref())?))
    }

    /// Sends the client certificate in these PEM files, like [`client_pem`](Self::client_pem).
    pub fn client_files(self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self> {
        let (certificate, key) = (read(certificate.as_ref())?, read(key.as_ref())?);
        Ok(self.client_pem(certificate, key))
    }

    pub(crate) fn apply(self, endpoint: Endpoint) -> Result<Endpoint> {
        let config = match self.ca {
            Some(ca) => self.config.ca_certificate(ca),
            None => self.config.with_native_roots(),
        };
        let refused =
            |error| Error::refused("tls", format!("the certificates for TLS cannot be used: {}", chain(&error)));
        endpoint.tls_config(config).map_err(refused)
    }
}

/// Omits the private key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("has_ca", &self.ca.is_some()).finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::refused("tls", format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let shown = format!("{:?}", Tls::new().client_pem("cert", "s3cret"));
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn a_missing_or_bad_file_is_refused_by_name() {
        let error = Tls::new().ca_file("/no/such.pem").unwrap_err();
        assert!(error.to_string().contains("/no/such.pem: No such file"), "{error}");
        let endpoint = Endpoint::from_static("https://broker:7432");
        let error = Tls::new().client_pem("junk", "junk").apply(endpoint).unwrap_err();
        assert_eq!(error.field(), Some("tls"));
    }
}
