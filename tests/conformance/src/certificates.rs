//! Certificates for the scenarios with TLS: a CA, a broker and a client signed by it, and another CA that has signed no
//! certificate.

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Writes `ca.pem`, `other-ca.pem`, `server.pem`, `server.key`, `client.pem` and `client.key`.
pub(crate) fn write(directory: &Path) -> Result<(), String> {
    make(directory).map_err(|error| format!("the certificates: {error}"))
}

fn make(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let put = |name: &str, text: String| fs::write(directory.join(name), text);
    let (ca, pem) = authority("conformance")?;
    put("ca.pem", pem)?;
    put("other-ca.pem", authority("nobody")?.1)?;
    for (name, purpose) in
        [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        put(&format!("{name}.pem"), params.signed_by(&key, &ca)?.pem())?;
        put(&format!("{name}.key"), key.serialize_pem())?;
    }
    Ok(())
}

fn authority(name: &str) -> Result<(Issuer<'static, KeyPair>, String), rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), pem))
}
