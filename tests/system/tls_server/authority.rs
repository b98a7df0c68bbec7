//! A certificate authority for tests, with issued and revoked certificates.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevocationReason, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

/// A certificate authority with a directory for its files.
pub struct Authority {
    pub directory: TempDir,
    params: CertificateParams,
    key: KeyPair,
}

/// A certificate and its key, in files.
#[derive(Clone)]
pub struct Files {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Files {
    pub fn cert(&self) -> &str {
        self.cert.to_str().expect("a path")
    }

    pub fn key(&self) -> &str {
        self.key.to_str().expect("a path")
    }
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("key");
        let directory = tempfile::tempdir().expect("directory");
        let cert = params.self_signed(&key).expect("authority");
        fs::write(directory.path().join("ca.pem"), cert.pem()).expect("ca.pem");
        Self { directory, params, key }
    }

    pub fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Issues a certificate for the broker, and writes it to files with this name.
    pub fn broker(&self, file: &str) -> Files {
        let names =
            vec![SanType::DnsName("localhost".try_into().expect("name")), SanType::IpAddress([127, 0, 0, 1].into())];
        self.sign(file, names, |_| {})
    }

    /// Issues a client certificate with this URI as its name.
    pub fn client(&self, uri: &str) -> Files {
        self.client_with(uri, |_| {})
    }

    pub fn client_with(&self, uri: &str, change: impl FnOnce(&mut CertificateParams)) -> Files {
        let file = uri.replace(['/', ':'], "_");
        self.sign(&file, vec![SanType::URI(uri.try_into().expect("name"))], change)
    }

    /// Issues a client certificate that has expired.
    pub fn expired_client(&self) -> Files {
        self.client_with("urn:expired", |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2020, 2, 1);
        })
    }

    /// Issues a client certificate with this serial number, which a test revokes.
    pub fn revoked_client(&self, serial: u64) -> Files {
        self.client_with("urn:revoked", |params| params.serial_number = Some(SerialNumber::from(serial)))
    }

    /// Writes a revocation list with these serial numbers, and returns its path.
    pub fn revocations(&self, serials: &[u64]) -> PathBuf {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer()).expect("list");
        let path = self.directory.path().join("crl.pem");
        replace(&path, &list.pem().expect("PEM"));
        path
    }

    fn sign(&self, file: &str, names: Vec<SanType>, change: impl FnOnce(&mut CertificateParams)) -> Files {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "a common name");
        params.subject_alt_names = names;
        params.use_authority_key_identifier_extension = true;
        change(&mut params);
        let key = KeyPair::generate().expect("key");
        let cert = params.signed_by(&key, &self.issuer()).expect("certificate");
        let path = |end: &str| self.directory.path().join(format!("{file}.{end}"));
        let files = Files { cert: path("pem"), key: path("key") };
        replace(&files.cert, &cert.pem());
        replace(&files.key, &key.serialize_pem());
        files
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }
}

/// Replaces a file atomically: readers see either the old or the new text.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("write");
    fs::rename(&new, path).expect("rename");
}
