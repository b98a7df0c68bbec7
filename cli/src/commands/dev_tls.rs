//! Certificates of `howdah dev --tls`: a generated authority, and one certificate for this machine.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use howdah_core::config::TlsFiles;
use howdah_server::tls::Tls;
use jiff::{ToSpan as _, Zoned, civil::Date};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};

use super::{dev_files::DevFiles, failure::Failure};

/// Validity of the certificates in days.
const DAYS: i64 = 397;
/// Remaining validity below which `howdah dev` regenerates its certificates at the start.
const RENEW_BEFORE: Duration = Duration::from_hours(30 * 24);

/// Generated certificates.
pub(super) struct DevTls {
    files: DevFiles,
}

impl DevTls {
    /// Generates certificates beside the data directory, or uses existing valid ones. Without a data directory they are
    /// temporary.
    pub(super) fn prepare(data_dir: Option<&Path>) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot generate certificates: {error}"));
        let own = DevFiles::beside(data_dir, "tls").map(|files| Self { files }).map_err(|error| failed(&error))?;
        if !own.is_good() {
            own.make().map_err(|error| failed(&error))?;
        }
        Ok(own)
    }

    /// Certificate and key files for the broker.
    pub(super) fn files(&self) -> TlsFiles {
        TlsFiles { cert: Some(self.path("server.pem")), key: Some(self.path("server.key")), ..TlsFiles::default() }
    }

    /// File with the authority's certificate, for clients.
    pub(super) fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path(name)
    }

    fn is_good(&self) -> bool {
        let long = |tls: &Tls| tls.expires() > SystemTime::now() + RENEW_BEFORE;
        self.path("ca.pem").exists() && matches!(Tls::load(&self.files()), Ok(Some(tls)) if long(&tls))
    }

    /// Generates the files. Does not store the authority's key, so that no other certificate can be signed with it.
    fn make(&self) -> io::Result<()> {
        let (ca, cert, key) = certificates().map_err(io::Error::other)?;
        // Clients may run as other users. Only the key is secret.
        self.files.write("server.key", &key, 0o600)?;
        self.files.write("server.pem", &cert, 0o644)?;
        self.files.write("ca.pem", &ca, 0o644)
    }
}

/// Generates the authority's certificate, the broker's certificate and the broker's key, in PEM.
fn certificates() -> Result<(String, String, String), rcgen::Error> {
    let mut ca = params("howdah dev");
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_key = KeyPair::generate()?;
    let ca_cert = ca.self_signed(&ca_key)?;
    let mut cert = params("howdah dev broker");
    cert.subject_alt_names = vec![
        SanType::DnsName("localhost".try_into()?),
        SanType::IpAddress(Ipv4Addr::LOCALHOST.into()),
        SanType::IpAddress(Ipv6Addr::LOCALHOST.into()),
    ];
    cert.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    cert.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    cert.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let signed = cert.signed_by(&key, &Issuer::new(ca, ca_key))?;
    Ok((ca_cert.pem(), signed.pem(), key.serialize_pem()))
}

/// Parameters of a certificate. It is valid from yesterday, because clocks differ.
fn params(name: &str) -> CertificateParams {
    let today = Zoned::now().date();
    let day = |date: Date| date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8);
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = day(today.saturating_sub(1.day()));
    params.not_after = day(today.saturating_add(DAYS.days()));
    params
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn certificates_are_kept_beside_the_data_and_only_the_key_is_secret() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("dev");
        let own = DevTls::prepare(Some(&data)).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join("dev-tls").join(name)).unwrap();
        let before = ["ca.pem", "server.pem", "server.key"].map(read);
        assert_eq!(fs::metadata(own.path("server.key")).unwrap().permissions().mode() & 0o777, 0o600);
        drop(DevTls::prepare(Some(&data)).unwrap());
        assert_eq!(["ca.pem", "server.pem", "server.key"].map(read), before, "clients continue after a restart");
        fs::write(own.path("server.pem"), "junk").unwrap();
        drop(DevTls::prepare(Some(&data)).unwrap());
        assert_ne!(read("ca.pem"), before[0], "invalid certificates are regenerated");
        assert!(own.is_good());
    }

    #[test]
    fn temporary_certificates_are_removed() {
        let own = DevTls::prepare(None).unwrap();
        let directory = own.ca().with_file_name("");
        assert!(own.is_good());
        drop(own);
        assert!(!directory.exists());
    }
}
