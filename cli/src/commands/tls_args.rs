//! TLS flags of commands that connect to a broker.

use std::path::{Path, PathBuf};

use howdah_client::{ClientBuilder, Tls};

use super::failure::Failure;

/// Trusted authorities, and the client certificate.
///
/// The variables of the client certificate contain CLIENT, because HOWDAH_TLS_CERT and HOWDAH_TLS_KEY are for the broker's
/// certificate.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
#[allow(clippy::struct_field_names, reason = "the fields have the names of the flags")]
pub(super) struct TlsArgs {
    /// Trust brokers at https:// addresses whose certificate is signed by these authorities (PEM) [default: the system's
    /// authorities]
    #[arg(long, global = true, value_name = "FILE", env = "HOWDAH_TLS_CA", hide_env_values = true)]
    tls_ca: Option<String>,
    /// Send this client certificate (PEM) to brokers at https:// addresses; needs --tls-key
    #[arg(long, global = true, value_name = "FILE", env = "HOWDAH_TLS_CLIENT_CERT", hide_env_values = true)]
    tls_cert: Option<String>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "HOWDAH_TLS_CLIENT_KEY", hide_env_values = true)]
    tls_key: Option<String>,
}

impl TlsArgs {
    /// Adds the files to a client builder. Errors name the flag and the file, and tell the user what to do.
    pub(super) fn apply(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        // An empty variable counts as unset.
        let given = |path: &Option<String>| path.as_ref().filter(|path| !path.is_empty()).map(PathBuf::from);
        let (ca, cert, key) = (given(&self.tls_ca), given(&self.tls_cert), given(&self.tls_key));
        let mut tls = Tls::new();
        if let Some(ca) = &ca {
            tls = tls.ca_pem(read("--tls-ca", ca, "CERTIFICATE")?);
        }
        tls = match (&cert, &key) {
            (Some(cert), Some(key)) => {
                tls.client_pem(read("--tls-cert", cert, "CERTIFICATE")?, read("--tls-key", key, "PRIVATE KEY")?)
            }
            (None, None) => tls,
            _ => {
                return Err(Failure::usage(
                    "--tls-cert and --tls-key go together: give both, or set HOWDAH_TLS_CLIENT_CERT and \
                     HOWDAH_TLS_CLIENT_KEY",
                ));
            }
        };
        Ok(if ca.is_some() || cert.is_some() { builder.tls(tls) } else { builder })
    }
}

/// Reads a PEM file that contains at least one item of the given kind.
pub(super) fn read(flag: &str, path: &Path, kind: &str) -> Result<Vec<u8>, Failure> {
    let wrong = |why: &str| Failure::usage(format!("{flag} {}: {why}", path.display()));
    let text = std::fs::read(path).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    let shown = String::from_utf8_lossy(&text);
    if shown.contains("ENCRYPTED") && kind == "PRIVATE KEY" {
        return Err(wrong("the key is encrypted; decrypt it with `openssl pkey -in KEY -out plain.key`"));
    }
    if !shown.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(kind)) {
        return Err(wrong(&format!("holds no -----BEGIN {kind}-----; it must be PEM")));
    }
    Ok(text)
}
