//! Tests of reading keys from servers and files, and of failed reads.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use howdah_core::error::Error;
use howdah_engine::metrics::{ByIssuer, JwtMetrics};
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::{
    KEYS_WITHIN,
    keys::{Keys, Pace},
    signing::{SigningKey, key_set},
    source::{Location, Source},
};

const LONG: Duration = Duration::from_secs(3_600);

/// An HTTPS server that sends the same response to each request and counts the requests.
struct Server {
    url: String,
    ca: tempfile::NamedTempFile,
    answer: Arc<Mutex<String>>,
    requests: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

fn answer(status: &str, more: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n{body}", body.len())
}

fn good(keys: &[&SigningKey]) -> String {
    answer("200 OK", "", &key_set(keys))
}

impl Server {
    async fn start(first: String) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
        let mut ca = tempfile::NamedTempFile::new().unwrap();
        ca.write_all(certificate.pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/keys", listener.local_addr().unwrap().port());
        let (answer, requests) = (Arc::new(Mutex::new(first)), Arc::new(AtomicUsize::new(0)));
        let (answers, counted) = (answer.clone(), requests.clone());
        let serve = async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut request = [0; 4_096];
                let _ = stream.read(&mut request).await;
                counted.fetch_add(1, Ordering::SeqCst);
                let text = answers.lock().clone();
                let _ = stream.write_all(text.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        };
        Self { url, ca, answer, requests, _task: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }

    fn source(&self) -> Source {
        let ca = self.ca.path().to_str().unwrap().to_owned();
        Location::parse(&self.url, Some(ca)).unwrap().open().unwrap()
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Keys of an issuer, with the task that refreshes them until this value is dropped.
struct Kept {
    keys: Arc<Keys>,
    metrics: JwtMetrics,
    _task: AbortOnDropHandle<()>,
}

fn keep(source: Source, every: Duration, unknown: Duration) -> Kept {
    let metrics = JwtMetrics::default();
    let pace = Pace { every, retry: every, unknown };
    let keys = Arc::new(Keys::new("i", &[Algorithm::ES256], source, pace, &metrics));
    let task = AbortOnDropHandle::new(tokio::spawn(keys.clone().keep()));
    Kept { keys, metrics, _task: task }
}

impl Kept {
    async fn has(&self, id: &str) -> bool {
        self.keys.find(Algorithm::ES256, Some(id)).await.is_ok()
    }

    fn failures(&self) -> u64 {
        self.metrics.key_read_failures.get_or_create(&ByIssuer { issuer: "i".into() }).get()
    }
}

#[tokio::test]
async fn a_flood_of_unknown_keys_makes_one_read() {
    let key = SigningKey::new("ES256", "a");
    let server = Server::start(good(&[&key])).await;
    let kept = keep(server.source(), LONG, LONG);
    // All 200 calls wait for the first read of the keys, so the server gets one request.
    let names: Vec<String> = (0..200).map(|n| format!("unknown-{n}")).collect();
    let found = futures::future::join_all(names.iter().map(|name| kept.has(name))).await;
    assert!(found.iter().all(|found| !found) && kept.has("a").await);
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn an_unknown_key_is_looked_for_once_the_pace_allows_it() {
    let (old, new) = (SigningKey::new("ES256", "old"), SigningKey::new("ES256", "new"));
    let server = Server::start(good(&[&old])).await;
    let kept = keep(server.source(), LONG, Duration::ZERO);
    let before = kept.keys.find(Algorithm::ES256, Some("old")).await.unwrap();
    *server.answer.lock() = good(&[&old, &new]);
    assert!(kept.has("new").await && server.requests() == 2);
    assert!(Arc::ptr_eq(&before, &kept.keys.find(Algorithm::ES256, Some("old")).await.unwrap()));
    // A new key with a known key id replaces the old key, whose credentials end.
    *server.answer.lock() = good(&[&new, &SigningKey::new("ES256", "old")]);
    assert!(!before.removed.is_cancelled() && !kept.has("unknown").await && before.removed.is_cancelled());
}

#[tokio::test]
async fn keys_stay_valid_while_reads_from_their_issuer_fail() {
    let key = SigningKey::new("ES256", "a");
    let server = Server::start(good(&[&key])).await;
    let kept = keep(server.source(), LONG, Duration::ZERO);
    let found = kept.keys.find(Algorithm::ES256, Some("a")).await.unwrap();
    let large = "x".repeat(300 << 10);
    let moved = format!("Location: {}\r\n", server.url);
    for (n, bad) in [
        answer("503 Service Unavailable", "", ""),
        answer("302 Found", &moved, &key_set(&[&key])),
        answer("200 OK", "", "no JSON"),
        answer("200 OK", "", &large),
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{large}"),
        String::new(),
    ]
    .into_iter()
    .enumerate()
    {
        *server.answer.lock() = bad;
        assert!(!kept.has("unknown").await && kept.has("a").await);
        assert_eq!((kept.failures(), server.requests()), (n as u64 + 1, n + 2));
    }
    assert!(!found.removed.is_cancelled());
}

#[tokio::test]
async fn a_failed_read_of_keys_from_a_server_is_reported_with_the_reason() {
    let server = Server::start(answer("301 Moved Permanently", "Location: https://localhost/\r\n", "")).await;
    let error = server.source().read().await.unwrap_err();
    assert!(error.contains(&server.url) && error.contains("redirects are not followed"), "{error}");
    assert_eq!(server.requests(), 1);
    *server.answer.lock() = answer("200 OK", "", &"x".repeat(300 << 10));
    assert!(server.source().read().await.unwrap_err().contains("more than 262144 bytes"));
    let other = Server::start(String::new()).await;
    let ca = other.ca.path().to_str().unwrap().to_owned();
    let error = Location::parse(&server.url, Some(ca)).unwrap().open().unwrap().read().await.unwrap_err();
    assert!(error.to_lowercase().contains("certificate"), "{error}");
}

#[tokio::test]
async fn token_checks_are_unavailable_until_the_keys_have_been_read() {
    let server = Server::start(answer("500 Internal Server Error", "", "")).await;
    let kept = keep(server.source(), LONG, Duration::ZERO);
    let error = kept.keys.find(Algorithm::ES256, Some("a")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    *server.answer.lock() = good(&[&SigningKey::new("ES256", "a")]);
    assert!(kept.has("a").await);
}

#[tokio::test]
async fn a_file_is_read_again_and_a_key_that_left_it_is_gone() {
    let (old, new) = (SigningKey::new("ES256", "old"), SigningKey::new("ES256", "new"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), key_set(&[&old])).unwrap();
    let source = Location::parse(file.path().to_str().unwrap(), None).unwrap().open().unwrap();
    let kept = keep(source, Duration::from_millis(10), LONG);
    let found = kept.keys.find(Algorithm::ES256, Some("old")).await.unwrap();
    std::fs::write(file.path(), key_set(&[&new])).unwrap();
    tokio::time::timeout(LONG / 60, found.removed.cancelled()).await.unwrap();
    assert!(kept.has("new").await);
}

#[tokio::test]
async fn a_call_that_needs_keys_of_a_stalled_server_is_answered_within_the_read_timeout() {
    // The server accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/keys", silent.local_addr().unwrap().port());
    let kept = keep(Location::parse(&url, None).unwrap().open().unwrap(), LONG, LONG);
    let call = kept.keys.find(Algorithm::ES256, Some("a"));
    let found = tokio::time::timeout(2 * KEYS_WITHIN, call).await.expect("an answer");
    assert!(matches!(found, Err(Error::Unavailable(_))));
    let failed = async {
        while kept.failures() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG / 60, failed).await.expect("the end of the read");
    // After the failed read, a call fails at once instead of waiting for the next read.
    let again = kept.keys.find(Algorithm::ES256, Some("a")).now_or_never().expect("an answer at once");
    assert!(matches!(again, Err(Error::Unavailable(_))));
    assert_eq!(kept.failures(), 1);
}
