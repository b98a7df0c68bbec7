//! Reads and parses the TLS files. Errors name the flag, the file and the problem.

use std::{
    fs,
    path::{Path, PathBuf},
};

use howdah_core::config::TlsFiles;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
    pem::{self, PemObject},
};

/// Maximum size of a TLS file in bytes. Revocation lists of large authorities have several megabytes.
const MOST_BYTES: u64 = 16 << 20;

/// Contents of all TLS files. Comparing two values shows whether the files have changed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
    client_crl: Option<Vec<u8>>,
}

/// Formats an error about a TLS file with the flag, the file and the problem.
pub(super) fn problem(flag: &str, path: Option<&Path>, why: &str) -> String {
    format!("{flag} {}: {why}", path.unwrap_or(Path::new("")).display())
}

impl Files {
    pub(super) fn read(paths: &TlsFiles) -> Result<Self, String> {
        let given = |flag, path: &Option<PathBuf>| path.as_deref().map(|path| read(flag, path)).transpose();
        let (cert, key) = (given("--tls-cert", &paths.cert)?, given("--tls-key", &paths.key)?);
        let client_ca = given("--tls-client-ca", &paths.client_ca)?;
        let client_crl = given("--tls-client-crl", &paths.client_crl)?;
        match (cert, key) {
            (Some(cert), Some(key)) => Ok(Self { cert, key, client_ca, client_crl }),
            _ => Err("--tls-cert and --tls-key go together: give both".into()),
        }
    }

    /// Parses the broker's certificate and its intermediate certificates.
    pub(super) fn chain(&self, paths: &TlsFiles) -> Result<Vec<CertificateDer<'static>>, String> {
        certificates(&self.cert).map_err(|why| {
            let swapped = key(&self.cert).is_ok() && certificates(&self.key).is_ok();
            let hint = match why {
                Wrong::None if swapped => {
                    "holds a key, and --tls-key names a certificate: exchange the two files".into()
                }
                Wrong::None => "holds no certificate; it must be PEM: the broker's certificate first, then the \
                                intermediate certificates"
                    .into(),
                Wrong::Pem(why) => why,
            };
            problem("--tls-cert", paths.cert.as_deref(), &hint)
        })
    }

    pub(super) fn key(&self, paths: &TlsFiles) -> Result<PrivateKeyDer<'static>, String> {
        key(&self.key).map_err(|why| {
            let path = paths.key.as_deref();
            let text = String::from_utf8_lossy(&self.key);
            let why = match why {
                _ if text.contains("ENCRYPTED") => format!(
                    "the key is encrypted, and the broker cannot ask for its passphrase; decrypt it with \
                     `openssl pkey -in {} -out plain.key` and protect the file with mode 0600",
                    path.unwrap_or(Path::new("")).display()
                ),
                Wrong::None => "holds no private key; it must be PEM and begin with -----BEGIN PRIVATE KEY-----".into(),
                Wrong::Pem(why) => why,
            };
            problem("--tls-key", path, &why)
        })
    }

    /// Parses the certificate authorities for client certificates.
    pub(super) fn authorities(&self, paths: &TlsFiles) -> Result<Option<Vec<CertificateDer<'static>>>, String> {
        let Some(client_ca) = &self.client_ca else { return Ok(None) };
        certificates(client_ca).map(Some).map_err(|why| {
            let why =
                why.or("holds no certificate; it must be PEM: the authorities that sign the clients' certificates");
            problem("--tls-client-ca", paths.client_ca.as_deref(), &why)
        })
    }

    /// Parses the revocation lists for client certificates.
    pub(super) fn revoked(&self, paths: &TlsFiles) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
        let Some(client_crl) = &self.client_crl else { return Ok(Vec::new()) };
        all(CertificateRevocationListDer::pem_slice_iter(client_crl).collect()).map_err(|why| {
            let why = why.or("holds no revocation list; it must be PEM and begin with -----BEGIN X509 CRL-----");
            problem("--tls-client-crl", paths.client_crl.as_deref(), &why)
        })
    }
}

/// Reason why a TLS file is unusable.
enum Wrong {
    /// The file contains no item of the expected kind, such as a certificate.
    None,
    Pem(String),
}

impl Wrong {
    fn or(self, none: &str) -> String {
        match self {
            Self::None => none.into(),
            Self::Pem(why) => why,
        }
    }
}

fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Wrong> {
    all(CertificateDer::pem_slice_iter(text).collect())
}

fn all<T>(found: Result<Vec<T>, pem::Error>) -> Result<Vec<T>, Wrong> {
    match found {
        Ok(found) if found.is_empty() => Err(Wrong::None),
        Ok(found) => Ok(found),
        Err(error) => Err(Wrong::Pem(format!("is not valid PEM: {error}"))),
    }
}

fn key(text: &[u8]) -> Result<PrivateKeyDer<'static>, Wrong> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => Wrong::None,
        error => Wrong::Pem(format!("is not valid PEM: {error}")),
    })
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |why: &dyn std::fmt::Display| problem(flag, Some(path), &format!("cannot be read: {why}"));
    let length = fs::metadata(path).map_err(|error| cannot(&error))?.len();
    if length > MOST_BYTES {
        return Err(cannot(&format_args!("it has {length} bytes; at most {MOST_BYTES} are read")));
    }
    let text = fs::read(path).map_err(|error| cannot(&error))?;
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(problem(flag, Some(path), "is empty; it must be PEM"));
    }
    Ok(text)
}

/// Warns if the private key can be read by users other than its owner and group.
pub(super) fn warn_of_modes(paths: &TlsFiles) {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(path) = &paths.key else { return };
    let mode = fs::metadata(path).map(|metadata| metadata.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o004 != 0) {
        tracing::warn!(
            path = %path.display(),
            "every user of this machine can read the broker's private key (tls_key): run chmod o-rwx on the file"
        );
    }
}
