//! TLS: which brokers are trusted, and which certificate they are shown.

use std::{fmt, fs, path::Path};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::{Error, Result, cause::chain};

/// Settings for brokers at `https://` addresses. Without them the authorities of the system are trusted, and no
/// certificate is shown.
#[derive(Clone, Default)]
#[must_use = "it has no effect until a ClientBuilder has it"]
pub struct Tls {
    ca: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

impl Tls {
    /// The authorities of the system, no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts only brokers whose certificate one of these authorities has signed: one or more PEM certificates.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// The same from a file.
    pub fn ca_file(self, path: impl AsRef<Path>) -> Result<Self> {
        Ok(self.ca_pem(read(path.as_ref())?))
    }

    /// Shows this certificate to brokers that ask for one: the certificate, with those of the authorities below the root,
    /// and its private key, both PEM.
    pub fn client_pem(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }

    /// The same from two files.
    pub fn client_files(self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self> {
        let (certificate, key) = (read(certificate.as_ref())?, read(key.as_ref())?);
        Ok(self.client_pem(certificate, key))
    }

    /// The name that the broker's certificate must have, if it is not the host of the address.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    pub(crate) fn apply(self, endpoint: Endpoint) -> Result<Endpoint> {
        let config = ClientTlsConfig::new();
        let config = match self.ca {
            Some(ca) => config.ca_certificate(Certificate::from_pem(ca)),
            None => config.with_native_roots(),
        };
        let config = match self.client {
            Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
            None => config,
        };
        let config = match self.server_name {
            Some(name) => config.domain_name(name),
            None => config,
        };
        let refused =
            |error| Error::invalid("tls", format!("the certificates for TLS cannot be used: {}", chain(&error)));
        endpoint.tls_config(config).map_err(refused)
    }
}

/// Never the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ca, client, server_name } = self;
        f.debug_struct("Tls")
            .field("own_ca", &ca.is_some())
            .field("shows_certificate", &client.is_some())
            .field("server_name", server_name)
            .finish()
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::invalid("tls", format!("{}: {error}", path.display())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let shown = format!("{:?}", Tls::new().client_pem("cert", "s3cret").server_name("broker"));
        assert!(!shown.contains("s3cret") && shown.contains("broker"), "{shown}");
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
