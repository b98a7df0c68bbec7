//! A connection to a broker. Adds token, reason and store to each call, logs incomplete responses, and converts HTTP errors of
//! proxies.

use std::{
    fmt::{self, Write as _},
    future::ready,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{Stream, TryStreamExt as _};
use http::{Response, StatusCode};
use parking_lot::Mutex;
use tonic::{
    Code, Request, Status,
    body::Body,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};
use tonic_types::{ErrorDetails, StatusExt as _};
use tower::util::MapResponse;

use crate::{Error, Result};

/// A connection to a broker. It adds the client's credential to each call. It logs which stores did not respond, because the
/// response is then incomplete.
pub type Connection = InterceptedService<Noted, Credential>;

/// A channel with a hook for responses.
type Noted = MapResponse<Channel, fn(Response<Body>) -> Response<Body>>;

/// Response header with the names of stores that did not respond in time.
const UNANSWERED: &str = "howdah-unanswered-stores";

pub(crate) fn connection(channel: Channel, credential: Credential) -> Connection {
    Connection::new(MapResponse::new(channel, check_response), credential)
}

/// Value of [`Error::reason`](crate::Error::reason) if a proxy refuses a request because of its size (HTTP 413).
pub(crate) const TOO_LARGE: &str = "REQUEST_TOO_LARGE";

fn check_response(answer: Response<Body>) -> Response<Body> {
    // A broker always responds with HTTP 200 and a gRPC status. So another HTTP status without a gRPC status comes from a
    // proxy.
    if answer.status() != StatusCode::OK && !answer.headers().contains_key(Status::GRPC_STATUS) {
        return proxy_status(answer.status()).into_http();
    }
    if let Some(stores) = answer.headers().get(UNANSWERED).and_then(|stores| stores.to_str().ok()) {
        tracing::warn!(
            stores,
            "these stores did not answer: the response lacks their data, and a change did not reach them"
        );
    }
    answer
}

/// Converts a proxy's HTTP status into a gRPC status, according to the gRPC specification.
fn proxy_status(status: StatusCode) -> Status {
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        let message = "a proxy between client and broker refuses a request of this size (HTTP 413): raise the proxy's limit \
                       (nginx: client_max_body_size), or send less at once";
        let details = ErrorDetails::with_error_info(TOO_LARGE, "howdah.dev", []);
        return Status::with_error_details(Code::ResourceExhausted, message, details);
    }
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        408 | 429 | 499 | 500..=599 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("HTTP {status}: the answer comes from a proxy or another server, not from a broker"))
}

/// Time in which the broker must end a stream that it or the client has closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until the broker ends a stream, and returns why: the broker's status, if it arrives in time. Drops further messages.
pub(crate) async fn close_reason<T>(messages: &mut (impl Stream<Item = Result<T, Status>> + Unpin)) -> Error {
    let end = messages.try_for_each(|_dropped| ready(Ok(())));
    match tokio::time::timeout(CLOSE_TIMEOUT, end).await {
        Ok(Err(status)) => status.into(),
        Ok(Ok(())) | Err(_) => Error::broken("the broker closed the stream"),
    }
}

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
    token: Option<Arc<Token>>,
    reason: Option<MetadataValue<Ascii>>,
    store: Option<MetadataValue<Ascii>>,
}

/// The debug output shows only whether a token is set.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.token.is_some() { "Credential(..)" } else { "Credential(none)" })
    }
}

/// A token, or a file with a token, which may be replaced at any time.
struct Token {
    file: Option<PathBuf>,
    /// The header with the token, and the time at which it was read.
    read: Mutex<(Instant, MetadataValue<Ascii>)>,
}

impl Credential {
    pub(crate) fn token(token: &str) -> Result<Self> {
        Ok(Self::new(None, header(token).map_err(|problem| Error::refused("token", problem))?))
    }

    pub(crate) fn token_file(path: PathBuf) -> Result<Self> {
        let value = read(&path).map_err(|problem| Error::refused("token_file", problem))?;
        Ok(Self::new(Some(path), value))
    }

    fn new(file: Option<PathBuf>, value: MetadataValue<Ascii>) -> Self {
        let token = Token { file, read: Mutex::new((Instant::now(), value)) };
        Self { token: Some(Arc::new(token)), ..Self::default() }
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
        self.token.is_some()
    }

    fn header(&self) -> Option<MetadataValue<Ascii>> {
        let token = self.token.as_ref()?;
        let mut last = token.read.lock();
        if let Some(path) = token.file.as_ref().filter(|_| last.0.elapsed() >= KEPT) {
            // Keeps the previous token if the file cannot be read, because that token may still be valid.
            last.0 = Instant::now();
            if let Ok(value) = read(path) {
                last.1 = value;
            }
        }
        Some(last.1.clone())
    }
}

impl Interceptor for Credential {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        for (key, value) in
            [("authorization", self.header()), (REASON, self.reason.clone()), (STORE, self.store.clone())]
        {
            if let Some(value) = value {
                request.metadata_mut().insert(key, value);
            }
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
    fn http_statuses_of_a_proxy_become_errors_of_the_matching_kind() {
        let error = |status: u16| Error::from(proxy_status(StatusCode::from_u16(status).unwrap_or_default()));
        let too_large = error(413);
        assert!(too_large.is_too_large() && !too_large.is_retryable());
        assert!(too_large.to_string().contains("client_max_body_size"), "{too_large}");
        for temporary in [429, 500, 502, 503, 504] {
            assert!(error(temporary).is_retried(), "{temporary}");
            assert!(error(temporary).to_string().contains(&temporary.to_string()), "{temporary}");
        }
        for permanent in [401, 403, 404] {
            assert!(error(permanent).is_refusal(), "{permanent}");
        }
    }

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
            let mut last = credential.token.as_ref().unwrap().read.lock();
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
