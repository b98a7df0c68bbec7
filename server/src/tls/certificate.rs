//! Reads the expiry time and the client's name from certificates.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
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
