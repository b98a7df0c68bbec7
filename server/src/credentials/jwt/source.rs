//! The source of an issuer's keys: a file or a URL.

use std::{error::Error as _, path::PathBuf, time::Duration};

use reqwest::{Certificate, Client, Url, header::ACCEPT, redirect::Policy};

/// Maximum size of a key set, in bytes.
pub(crate) const BYTES: usize = 256 << 10;
/// Timeout of one read of a key set.
pub(crate) const WITHIN: Duration = Duration::from_secs(5);

/// Configured location of an issuer's key set.
#[derive(Debug)]
pub(super) enum Location {
    /// A local file.
    File(PathBuf),
    /// A document that is fetched over https.
    Url {
        url: Url,
        /// File with the certificate authorities to trust for the server's certificate. `None` for the system's authorities.
        ca: Option<PathBuf>,
    },
}

impl Location {
    /// Parses the location: a URL if the text contains `://`, else a file path.
    pub(super) fn parse(jwks: &str, ca: Option<String>) -> Result<Self, String> {
        if !jwks.contains("://") {
            return match ca {
                None => Ok(Self::File(jwks.into())),
                Some(_) => Err("jwks_ca: may be set only if jwks begins with https://".into()),
            };
        }
        let url = Url::parse(jwks).map_err(|error| format!("jwks: {error}"))?;
        if url.scheme() != "https" {
            return Err("jwks: must be https://..., or the path of a file".into());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("jwks: must not contain a user or a password".into());
        }
        Ok(Self::Url { url, ca: ca.map(PathBuf::from) })
    }

    /// Prepares the source: loads the certificate authorities and creates the HTTP client.
    pub(super) fn open(self) -> Result<Source, String> {
        match self {
            Self::File(path) => Ok(Source::File(path)),
            Self::Url { url, ca } => {
                let mut client = Client::builder()
                    .user_agent(concat!("howdah/", env!("CARGO_PKG_VERSION")))
                    .https_only(true)
                    .redirect(Policy::none())
                    .timeout(WITHIN)
                    // Reads of a key set are minutes apart, so no idle HTTP connections are kept.
                    .pool_max_idle_per_host(0);
                if let Some(path) = ca {
                    let problem = |problem: String| format!("jwks_ca: {}: {problem}", path.display());
                    let pem = std::fs::read(&path).map_err(|error| problem(error.to_string()))?;
                    let authorities = Certificate::from_pem_bundle(&pem).map_err(|error| problem(describe(&error)))?;
                    if authorities.is_empty() {
                        return Err(problem("the file has no certificate (PEM)".into()));
                    }
                    client = client.tls_certs_only(authorities);
                }
                let client = client.build().map_err(|error| format!("jwks: {}", describe(&error)))?;
                Ok(Source::Url { url, client })
            }
        }
    }
}

/// A source of keys that is ready to be read.
pub(super) enum Source {
    File(PathBuf),
    Url { url: Url, client: Client },
}

impl Source {
    /// Reads the key set. Fails if it is too large or the read takes too long.
    pub(super) async fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::File(path) => {
                let problem = |problem: String| format!("{}: {problem}", path.display());
                let size = tokio::fs::metadata(path).await.map_err(|error| problem(error.to_string()))?.len();
                if size > BYTES as u64 {
                    return Err(problem(too_large()));
                }
                tokio::fs::read(path).await.map_err(|error| problem(error.to_string()))
            }
            Self::Url { url, client } => fetch(url, client).await.map_err(|problem| format!("{url}: {problem}")),
        }
    }

    /// Whether the key set is a local file, which is cheap to read often.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

async fn fetch(url: &Url, client: &Client) -> Result<Vec<u8>, String> {
    let request = client.get(url.clone()).header(ACCEPT, "application/jwk-set+json, application/json");
    let mut answer = request.send().await.map_err(|error| describe(&error))?;
    let status = answer.status();
    if status.is_redirection() {
        return Err(format!("the server answered {status}; redirects are not followed"));
    }
    if status != reqwest::StatusCode::OK {
        return Err(format!("the server answered {status}"));
    }
    if answer.content_length().is_some_and(|length| length > BYTES as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| describe(&error))? {
        if body.len() + chunk.len() > BYTES {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn too_large() -> String {
    format!("it has more than {BYTES} bytes")
}

/// Formats the causes of an HTTP error, without the URL.
fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", WITHIN.as_secs());
    }
    let mut cause = error.source();
    let mut texts = Vec::new();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    if texts.is_empty() { "the request failed".into() } else { texts.join(": ") }
}
