//! Tests of fields in certificates, and of errors for unusable TLS files.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use howdah_core::config::TlsFiles;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use tonic::codegen::http::Extensions;

use super::{PeerIdentity, Tls};

fn certificate(names: Vec<SanType>) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "common.example");
    params.subject_alt_names = names;
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

fn name(names: Vec<SanType>) -> Option<String> {
    PeerIdentity::in_certificate(&certificate(names)).map(|identity| identity.name.to_string())
}

#[test]
fn a_client_is_named_by_its_uri_else_by_its_dns_name_and_never_by_its_common_name() {
    let spiffe = "spiffe://example.org/mailer";
    assert_eq!(name(vec![dns("mailer.example"), uri(spiffe), uri("urn:b")]).as_deref(), Some(spiffe));
    assert_eq!(name(vec![dns("mailer.example"), dns("b.example")]).as_deref(), Some("mailer.example"));
    assert_eq!(name(vec![]), None);
    assert_eq!(name(vec![SanType::IpAddress([127, 0, 0, 1].into())]), None);
}

#[test]
fn a_name_with_spaces_control_characters_or_over_512_bytes_is_ignored() {
    for bad in ["", "a b", "a\nb", "a\u{1b}[2J", &"x".repeat(513)] {
        assert_eq!(name(vec![uri(bad)]), None, "{bad:?}");
    }
    assert_eq!(PeerIdentity::in_certificate(&CertificateDer::from(vec![1, 2, 3])), None);
}

#[test]
fn the_services_read_the_identity_from_the_extensions_of_a_request() {
    let mut extensions = Extensions::new();
    assert_eq!(PeerIdentity::get(&extensions), None);
    let mailer = PeerIdentity { name: "mailer".into() };
    extensions.insert(mailer.clone());
    assert_eq!(PeerIdentity::get(&extensions), Some(&mailer));
}

/// A directory with a valid certificate and its key.
struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        let directory = Self(tempfile::tempdir().unwrap());
        directory.write_pair();
        directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn write_pair(&self) {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
        self.write("cert.pem", &cert.pem());
        self.write("key.pem", &key.serialize_pem());
    }

    fn files(&self) -> TlsFiles {
        TlsFiles { cert: Some(self.path("cert.pem")), key: Some(self.path("key.pem")), ..TlsFiles::default() }
    }

    /// Returns the error for these TLS files, without the name of the directory.
    fn problem(&self, files: &TlsFiles) -> String {
        let problem = Tls::load(files).err().expect("a problem");
        problem.replace(&format!("{}/", self.0.path().display()), "")
    }
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_flag_and_what_to_do() {
    let directory = Directory::new();
    assert!(Tls::load(&TlsFiles::default()).unwrap().is_none());
    assert!(Tls::load(&directory.files()).unwrap().is_some());
    let read = |name: &str| fs::read_to_string(directory.path(name)).unwrap();
    let (cert, key) = (read("cert.pem"), read("key.pem"));
    let other = KeyPair::generate().unwrap().serialize_pem();
    let cases = [
        ("cert.pem", "", "--tls-cert cert.pem: is empty; it must be PEM"),
        (
            "cert.pem",
            "junk",
            "--tls-cert cert.pem: holds no certificate; it must be PEM: the broker's certificate first",
        ),
        ("cert.pem", "-----BEGIN CERTIFICATE-----\nAAAA", "--tls-cert cert.pem: is not valid PEM"),
        ("key.pem", &cert, "--tls-key key.pem: holds no private key"),
        ("key.pem", &other, "--tls-key key.pem: does not belong to the certificate of --tls-cert cert.pem"),
        (
            "key.pem",
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "--tls-key key.pem: the key is encrypted",
        ),
    ];
    for (name, text, expected) in cases {
        directory.write("cert.pem", &cert);
        directory.write("key.pem", &key);
        directory.write(name, text);
        let problem = directory.problem(&directory.files());
        assert!(problem.starts_with(expected), "{problem}");
    }
    directory.write("cert.pem", &key);
    directory.write("key.pem", &cert);
    assert!(directory.problem(&directory.files()).ends_with("exchange the two files"));
    let gone = TlsFiles { cert: Some(directory.path("gone.pem")), ..directory.files() };
    let problem = directory.problem(&gone);
    assert!(problem.starts_with("--tls-cert gone.pem: cannot be read: No such file"), "{problem}");
}

#[test]
fn unusable_client_authorities_and_revocation_lists_are_named_with_their_flag() {
    let directory = Directory::new();
    directory.write("junk.pem", "junk");
    let ca = TlsFiles { client_ca: Some(directory.path("junk.pem")), ..directory.files() };
    assert!(directory.problem(&ca).starts_with("--tls-client-ca junk.pem: holds no certificate"));
    let crl = TlsFiles {
        client_ca: Some(directory.path("cert.pem")),
        client_crl: Some(directory.path("junk.pem")),
        ..directory.files()
    };
    assert!(directory.problem(&crl).starts_with("--tls-client-crl junk.pem: holds no revocation list"));
}

#[test]
fn changed_files_are_put_in_force_once_and_bad_ones_are_reported_once() {
    let directory = Directory::new();
    let tls = Tls::load(&directory.files()).unwrap().unwrap();
    assert_eq!(tls.reload(), None);
    directory.write_pair();
    assert_eq!(tls.reload(), Some(Ok(())));
    assert_eq!(tls.reload(), None);
    directory.write("key.pem", "");
    assert!(matches!(tls.reload(), Some(Err(problem)) if problem.starts_with("--tls-key ")));
    assert_eq!(tls.reload(), None);
    directory.write("key.pem", "junk");
    assert!(matches!(tls.reload(), Some(Err(_))));
    directory.write_pair();
    assert_eq!(tls.reload(), Some(Ok(())));
}
