//! Certificates and token that `howdah dev` generates for the broker and its clients. They are in directories beside the data
//! directory, or in temporary directories.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use howdah_core::config::{Config, TlsFiles};
use howdah_engine::access::Token;
use howdah_server::{credentials, serve::Ready, tls::Tls};
use jiff::{ToSpan as _, Zoned, civil::Date};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use tempfile::TempDir;

use super::failure::Failure;

/// Generated certificates and token, for the broker and its clients.
pub(super) struct Credentials {
    tls: Option<DevTls>,
    token: Option<DevToken>,
}

impl Credentials {
    pub(super) fn prepare(with_tls: bool, config: &mut Config, data_dir: Option<&Path>) -> Result<Self, Failure> {
        let tls = with_tls.then(|| DevTls::prepare(data_dir)).transpose()?;
        if let Some(tls) = &tls {
            config.tls = tls.files();
        }
        let needs_token = config.auth.token && config.auth_token_file.is_none();
        let token = needs_token.then(|| DevToken::prepare(data_dir)).transpose()?;
        if let Some(token) = &token {
            config.auth_token_file = Some(token.for_broker());
        }
        Ok(Self { tls, token })
    }

    /// Commands that show how clients connect. Empty without TLS and without a token.
    pub(super) fn hints(&self, ready: &Ready) -> Vec<String> {
        if self.tls.is_none() && self.token.is_none() {
            return Vec::new();
        }
        let Ready { grpc, http } = ready;
        let (scheme, howdah, grpcurl, curl) = match &self.tls {
            Some(tls) => {
                let ca = tls.ca();
                let ca = ca.display();
                ("https", format!(" --tls-ca {ca}"), format!("-cacert {ca}"), format!("--cacert {ca} "))
            }
            None => ("http", String::new(), "-plaintext".to_owned(), String::new()),
        };
        let (howdah_token, grpcurl_token) = match &self.token {
            Some(token) => {
                let file = token.for_clients();
                let file = file.display();
                (format!(" --token-file {file}"), format!(" -H \"authorization: Bearer $(cat {file})\""))
            }
            None => (String::new(), String::new()),
        };
        vec![
            format!("howdah --server {scheme}://{grpc}{howdah}{howdah_token} types"),
            format!("grpcurl {grpcurl}{grpcurl_token} {grpc} list"),
            format!("curl {curl}{scheme}://{http}/readyz"),
        ]
    }
}

/// Directory with the files that `howdah dev` generates. A temporary directory is deleted on drop.
struct DevFiles {
    directory: PathBuf,
    /// Deletes the directory on drop.
    _temporary: Option<TempDir>,
}

impl DevFiles {
    /// Creates the directory `DATA_DIR-NAME` if needed, or a temporary directory if there is no data directory. All users can
    /// list the directory; secret files are protected by their own file mode.
    fn beside(data_dir: Option<&Path>, name: &str) -> io::Result<Self> {
        let own = if let Some(data_dir) = data_dir {
            let mut directory = data_dir.as_os_str().to_owned();
            directory.push(format!("-{name}"));
            fs::create_dir_all(&directory)?;
            Self { directory: directory.into(), _temporary: None }
        } else {
            let temporary = tempfile::Builder::new().prefix(&format!("howdah-{name}-")).tempdir()?;
            Self { directory: temporary.path().to_owned(), _temporary: Some(temporary) }
        };
        fs::set_permissions(&own.directory, fs::Permissions::from_mode(0o755))?;
        Ok(own)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Removes an existing file and creates a new one, so that the file has this mode before it has content.
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

/// Validity of the certificates in days.
const DAYS: i64 = 397;
/// Remaining validity below which `howdah dev` regenerates its certificates at the start.
const RENEW_BEFORE: Duration = Duration::from_hours(30 * 24);

/// Generated certificates.
struct DevTls {
    files: DevFiles,
}

impl DevTls {
    /// Generates certificates beside the data directory, or uses existing valid ones. Without a data directory they are
    /// temporary.
    fn prepare(data_dir: Option<&Path>) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot generate certificates: {error}"));
        let own = DevFiles::beside(data_dir, "tls").map(|files| Self { files }).map_err(|error| failed(&error))?;
        if !own.is_good() {
            own.make().map_err(|error| failed(&error))?;
        }
        Ok(own)
    }

    /// Certificate and key files for the broker.
    fn files(&self) -> TlsFiles {
        TlsFiles { cert: Some(self.path("server.pem")), key: Some(self.path("server.key")), ..TlsFiles::default() }
    }

    /// File with the authority's certificate, for clients.
    fn ca(&self) -> PathBuf {
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

/// Principal of the token.
const PRINCIPAL: &str = "dev";
const SCOPES: &str = "admin:* operate:* read:* payload:* enqueue:* work:*";

/// Generated token: one file with the token for clients, and one with token and scopes for the broker.
struct DevToken {
    files: DevFiles,
}

impl DevToken {
    /// Generates a token beside the data directory, or uses an existing valid one. Without a data directory it is temporary.
    fn prepare(data_dir: Option<&Path>) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot generate a token: {error}"));
        let own = DevFiles::beside(data_dir, "token").map(|files| Self { files }).map_err(|error| failed(&error))?;
        if !own.is_good() {
            let token = Token::generate();
            let line = format!("{} {PRINCIPAL} {SCOPES}\n", token.secret());
            own.files.write("broker", &line, 0o600).map_err(|error| failed(&error))?;
            own.files.write("client", token.secret(), 0o600).map_err(|error| failed(&error))?;
        }
        Ok(own)
    }

    /// Token file for the broker.
    fn for_broker(&self) -> PathBuf {
        self.files.path("broker")
    }

    /// Token file for clients.
    fn for_clients(&self) -> PathBuf {
        self.files.path("client")
    }

    fn is_good(&self) -> bool {
        let token = fs::read_to_string(self.for_clients()).ok().and_then(|text| Token::parse(text.trim()).ok());
        let known = credentials::read_token_file(&self.for_broker()).unwrap_or_default();
        token.is_some_and(|token| known.iter().any(|known| known.id == *token.id()))
    }
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

    #[test]
    fn a_token_is_kept_beside_the_data_for_this_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("dev");
        let own = DevToken::prepare(Some(&data)).unwrap();
        let token = || fs::read_to_string(directory.path().join("dev-token/client")).unwrap();
        let first = token();
        for file in [own.for_broker(), own.for_clients()] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let known = credentials::read_token_file(&own.for_broker()).unwrap();
        for (_, word) in howdah_engine::access::Operation::ALL {
            assert!(known[0].scopes.contains(&format!("{word}:*")), "it has all scopes: {:?}", known[0].scopes);
        }
        drop(DevToken::prepare(Some(&data)).unwrap());
        assert_eq!(token(), first, "clients continue after a restart");
        fs::write(own.for_broker(), "junk").unwrap();
        drop(DevToken::prepare(Some(&data)).unwrap());
        assert_ne!(token(), first, "a token that the broker rejects is regenerated");
    }
}
