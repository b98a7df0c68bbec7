//! Metadata of each call: token, reason and store.

use std::{
    fmt::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
};

use crate::{Error, Result};

/// Time for which a token read from a file is used before the file is read again.
const KEPT: Duration = Duration::from_secs(10);
/// Maximum size of a token file.
const FILE_BYTES: u64 = 64 << 10;

/// Metadata key of the reason of a change.
const REASON: &str = "howdah-reason";
/// Metadata key of the store of a call.
const STORE: &str = "howdah-store";

/// Metadata that a client adds to each call: its token, the reason of its changes, and the store, if they are set.
#[derive(Clone, Default)]
pub struct Credential {
    source: Option<Source>,
    reason: Option<MetadataValue<Ascii>>,
    store: Option<MetadataValue<Ascii>>,
}

/// The debug output shows only whether a token is set.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.source.is_some() { "Credential(..)" } else { "Credential(none)" })
    }
}

#[derive(Clone)]
enum Source {
    Fixed(MetadataValue<Ascii>),
    File(Arc<TokenFile>),
}

/// A file with a token, which may be replaced at any time.
struct TokenFile {
    path: PathBuf,
    read: Mutex<(Instant, MetadataValue<Ascii>)>,
}

impl Credential {
    pub(crate) fn token(token: &str) -> Result<Self> {
        let value = header(token).map_err(|problem| Error::refused("token", problem))?;
        Ok(Self { source: Some(Source::Fixed(value)), ..Self::default() })
    }

    pub(crate) fn token_file(path: PathBuf) -> Result<Self> {
        let value = read(&path).map_err(|problem| Error::refused("token_file", problem))?;
        let file = TokenFile { path, read: Mutex::new((Instant::now(), value)) };
        Ok(Self { source: Some(Source::File(Arc::new(file))), ..Self::default() })
    }

    /// Sets the reason of changes, percent-encoded except for plain ASCII. Brokers check its length.
    pub(crate) fn with_reason(self, text: &str) -> Self {
        let mut encoded = String::new();
        for byte in text.trim().bytes() {
            match byte {
                b'%' | 0..=0x1f | 0x7f.. => {
                    let _ = write!(encoded, "%{byte:02X}");
                }
                _ => encoded.push(char::from(byte)),
            }
        }
        // Parsing cannot fail, because the encoded text is printable ASCII.
        let reason = Some(encoded).filter(|text| !text.is_empty()).and_then(|text| text.parse().ok());
        Self { reason, ..self }
    }

    pub(crate) fn in_store(self, name: &str) -> Result<Self> {
        let refused = |_| Error::refused("store", format!("{name:?} is not the name of a store"));
        Ok(Self { store: Some(name.parse().map_err(refused)?), ..self })
    }

    /// Whether a token is set.
    pub(crate) fn is_some(&self) -> bool {
        self.source.is_some()
    }

    fn header(&self) -> Option<MetadataValue<Ascii>> {
        match self.source.as_ref()? {
            Source::Fixed(value) => Some(value.clone()),
            Source::File(file) => {
                let mut last = file.read.lock();
                if last.0.elapsed() >= KEPT {
                    // Keeps the previous token if the file cannot be read, because that token may still be valid.
                    last.0 = Instant::now();
                    if let Ok(value) = read(&file.path) {
                        last.1 = value;
                    }
                }
                Some(last.1.clone())
            }
        }
    }
}

impl Interceptor for Credential {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(value) = self.header() {
            request.metadata_mut().insert("authorization", value);
        }
        if let Some(reason) = &self.reason {
            request.metadata_mut().insert(REASON, reason.clone());
        }
        if let Some(store) = &self.store {
            request.metadata_mut().insert(STORE, store.clone());
        }
        Ok(request)
    }
}

fn read(path: &Path) -> std::result::Result<MetadataValue<Ascii>, String> {
    let failed = |problem: String| format!("{}: {problem}", path.display());
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > FILE_BYTES {
        return Err(failed(format!("the file has {size} bytes; a token file may have at most {FILE_BYTES}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    header(text.trim()).map_err(failed)
}

fn header(token: &str) -> std::result::Result<MetadataValue<Ascii>, String> {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the token is empty, or contains spaces or characters other than printable ASCII".to_owned());
    }
    let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| "is not a token".to_owned())?;
    // A value that is marked as sensitive is omitted when headers are logged.
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_and_never_shown() {
        let credential = Credential::token("hwd_secret").unwrap();
        let request = credential.clone().call(Request::new(())).unwrap();
        assert_eq!(request.metadata().get("authorization").unwrap(), "Bearer hwd_secret");
        assert!(!format!("{credential:?} {request:?}").contains("secret"));
        assert!(Credential::default().call(Request::new(())).unwrap().metadata().is_empty());
    }

    #[test]
    fn a_file_is_read_again_after_a_while_and_one_that_cannot_be_read_changes_nothing() {
        let path = std::env::temp_dir().join(format!("howdah-token-{}", std::process::id()));
        std::fs::write(&path, "hwd_first\n").unwrap();
        let credential = Credential::token_file(path.clone()).unwrap();
        let sent = || {
            let request = credential.clone().call(Request::new(())).unwrap();
            request.metadata().get("authorization").unwrap().to_str().unwrap().to_owned()
        };
        let a_while_later = || {
            let Some(Source::File(file)) = &credential.source else { panic!("a file") };
            let mut last = file.read.lock();
            last.0 = last.0.checked_sub(KEPT).unwrap();
        };
        assert_eq!(sent(), "Bearer hwd_first");
        std::fs::write(&path, "hwd_second\n").unwrap();
        a_while_later();
        assert_eq!(sent(), "Bearer hwd_second");
        for gone in [std::fs::write(&path, "no token\n"), std::fs::remove_file(&path)] {
            gone.unwrap();
            a_while_later();
            assert_eq!(sent(), "Bearer hwd_second");
        }
    }

    #[test]
    fn a_reason_is_sent_as_ascii() {
        let sent = |text| {
            let request = Credential::default().with_reason(text).call(Request::new(())).unwrap();
            request.metadata().get(REASON).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(sent("ticket 42: 5% für\n").as_deref(), Some("ticket 42: 5%25 f%C3%BCr"));
        assert_eq!(sent(" "), None);
    }

    #[test]
    fn a_malformed_token_is_refused_and_absent_from_the_error() {
        for bad in ["", "a b", "a\nb", "schl\u{fc}ssel"] {
            let error = Credential::token(bad).unwrap_err();
            assert_eq!(error.field(), Some("token"));
            assert!(bad.is_empty() || !error.to_string().contains(bad), "{error}");
        }
        let error = Credential::token_file("/nowhere/token".into()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/token"), "{error}");
    }
}
