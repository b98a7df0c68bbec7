//! The certificates of `howdah dev --tls`: an authority of its own, and one certificate for this machine.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use howdah_server::{config::TlsFiles, serve::Ready, tls::Tls};
use jiff::{ToSpan as _, Zoned, civil::Date};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use tempfile::TempDir;

use super::failure::Failure;

/// Days that certificates are good for.
const DAYS: i64 = 397;
/// Certificates that expire sooner are made anew at the start.
const RENEW_BEFORE: Duration = Duration::from_hours(30 * 24);

/// Where the certificates are.
pub(super) struct DevTls {
    directory: PathBuf,
    /// Removed at the end.
    _temporary: Option<TempDir>,
}

impl DevTls {
    /// Makes certificates beside the data directory, or uses those that are there. Without a data directory they are
    /// temporary.
    pub(super) fn prepare(data_dir: Option<&Path>) -> Result<Self, Failure> {
        let made = match data_dir {
            Some(data_dir) => {
                let mut directory = data_dir.as_os_str().to_owned();
                directory.push("-tls");
                fs::create_dir_all(&directory).map(|()| Self { directory: directory.into(), _temporary: None })
            }
            None => tempfile::Builder::new()
                .prefix("howdah-tls-")
                .tempdir()
                .map(|temporary| Self { directory: temporary.path().to_owned(), _temporary: Some(temporary) }),
        };
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot make certificates: {error}"));
        let own = made.map_err(|error| failed(&error))?;
        if !own.is_good() {
            own.make().map_err(|error| failed(&error))?;
        }
        Ok(own)
    }

    /// What the broker serves with.
    pub(super) fn files(&self) -> TlsFiles {
        TlsFiles { cert: Some(self.path("server.pem")), key: Some(self.path("server.key")), ..TlsFiles::default() }
    }

    /// How clients connect.
    pub(super) fn hints(&self, ready: &Ready) -> Vec<String> {
        let ca = self.path("ca.pem");
        let ca = ca.display();
        let Ready { grpc, http } = ready;
        vec![
            format!("howdah --server https://{grpc} --tls-ca {ca} types"),
            format!("grpcurl -cacert {ca} {grpc} list"),
            format!("curl --cacert {ca} https://{http}/readyz"),
        ]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn is_good(&self) -> bool {
        let long = |tls: &Tls| tls.expires() > SystemTime::now() + RENEW_BEFORE;
        self.path("ca.pem").exists() && matches!(Tls::load(&self.files()), Ok(Some(tls)) if long(&tls))
    }

    /// The key of the authority is not stored: nobody can sign another certificate that clients would trust.
    fn make(&self) -> io::Result<()> {
        // Clients may be other users. Only the key is secret.
        fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o755))?;
        let (ca, cert, key) = certificates().map_err(io::Error::other)?;
        self.write("server.key", &key, 0o600)?;
        self.write("server.pem", &cert, 0o644)?;
        self.write("ca.pem", &ca, 0o644)
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> io::Result<()> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())
    }
}

/// The authority's certificate, the broker's, and its key; PEM.
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

/// Good from yesterday on, since clocks differ.
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
        assert_eq!(["ca.pem", "server.pem", "server.key"].map(read), before, "clients go on after a new start");
        fs::write(own.path("server.pem"), "junk").unwrap();
        drop(DevTls::prepare(Some(&data)).unwrap());
        assert_ne!(read("ca.pem"), before[0], "bad ones are made anew");
        assert!(own.is_good());
    }

    #[test]
    fn temporary_certificates_are_removed() {
        let own = DevTls::prepare(None).unwrap();
        let directory = own.directory.clone();
        assert!(own.is_good());
        drop(own);
        assert!(!directory.exists());
    }
}
