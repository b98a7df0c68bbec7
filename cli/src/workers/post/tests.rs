mod receivers; // runs the example receivers of the reference

use std::{collections::HashMap, future::pending, net::SocketAddr};

use axum::{
    Router,
    body::Bytes as Body,
    extract::{ConnectInfo, Path, RawQuery, State},
    http::{HeaderMap as Headers, Method as Verb},
    response::{IntoResponse as _, Response as Answer},
    routing::any,
};
use howdah_client::NewJob;
use parking_lot::Mutex;
use reqwest::header::LOCATION;
use tokio::net::TcpListener;

use super::*;

/// Request that the server received.
#[derive(Clone, Debug)]
struct Seen {
    method: Verb,
    headers: Headers,
    body: Body,
    peer: SocketAddr,
}

type Log = Arc<Mutex<Vec<Seen>>>;

/// Starts a server whose answer depends on the path, including errors.
async fn server() -> (String, Log) {
    let log = Log::default();
    let router = Router::new().route("/{*path}", any(answer)).with_state(log.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    (format!("http://{address}"), log)
}

async fn answer(
    State(log): State<Log>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path(path): Path<String>,
    RawQuery(query): RawQuery,
    method: Verb,
    headers: Headers,
    body: Body,
) -> Answer {
    log.lock().push(Seen { method, headers, body: body.clone(), peer });
    let (what, rest) = path.split_once('/').unwrap_or((&path, ""));
    match what {
        "upper" => body.to_ascii_uppercase().into_response(),
        "stage" => ([("howdah-next-stage", rest.to_owned())], body).into_response(),
        "large" => vec![b'x'; MAX_RESULT_BYTES + 1].into_response(),
        "hang" => pending().await,
        "later" => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", rest.to_owned())], "busy").into_response(),
        "to" => {
            let (status, to) = rest.split_once('/').unwrap();
            let status = StatusCode::from_u16(status.parse().unwrap()).unwrap();
            (status, [("location", query.unwrap_or_else(|| format!("/{to}")))]).into_response()
        }
        status => (StatusCode::from_u16(status.parse().unwrap()).unwrap(), rest.to_owned()).into_response(),
    }
}

fn target(url: &str) -> Target {
    Target {
        url: url.parse().unwrap(),
        method: Method::POST,
        headers: HeaderMap::new(),
        secret: None,
        timeout: Duration::from_secs(30),
        allow_private: true,
        idle_connections: 10,
    }
}

/// Creates the second attempt of job 17 of type `hook`, with these headers.
async fn attempt(headers: &[(&str, &str)]) -> Attempt {
    let mut attempt = Attempt::of(NewJob::new("hook").payload("hello")).await;
    (attempt.job.id, attempt.job.attempt) = (17, 2);
    attempt.job.headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    attempt
}

/// Runs a job without headers with this target.
async fn run(target: Target) -> Outcome {
    Post::new(target).unwrap().run(&attempt(&[]).await).await
}

async fn post(url: &str) -> Outcome {
    run(target(url)).await
}

/// Returns the error of a failed attempt that is retried by the retry policy.
fn retried(outcome: Outcome) -> String {
    match outcome {
        Outcome::Retry { error, after: None, .. } => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_may_name_the_next_stage() {
    let (url, _) = server().await;
    assert_eq!(post(&format!("{url}/stage/mail")).await, Outcome::advance("hello", "mail"));
    let error = retried(post(&format!("{url}/stage/no%20such")).await);
    assert!(error.contains("the next stage") && error.contains("no such"), "{error}");
}

#[tokio::test]
async fn a_request_says_which_job_it_is_and_its_answer_is_the_result() {
    let (url, log) = server().await;
    let mut target = target(&format!("{url}/upper"));
    target.method = Method::PUT;
    target.headers = HeaderMap::from_iter([(HeaderName::from_static("x-key"), HeaderValue::from_static("k"))]);
    let headers = [("content-type", "text/plain"), ("tenant", "a"), ("bad name", "b"), ("Howdah-Job-Id", "99")];
    let mut job = attempt(&headers).await;
    job.job.tags = vec!["a b".into(), "ü".into()];
    job.job.traceparent = "00-1".into();
    assert_eq!(Post::new(target).unwrap().run(&job).await, Outcome::ack("HELLO"));
    let seen = log.lock()[0].clone();
    assert_eq!((seen.method.as_str(), &seen.body[..]), ("PUT", &b"hello"[..]));
    let header = |name: &str| seen.headers.get(name).map(|value| value.to_str().unwrap());
    let expected = HashMap::from([
        ("howdah-job-id", Some("17")),
        ("howdah-task-type", Some("hook")),
        ("howdah-attempt", Some("2")),
        ("howdah-max-attempts", Some("10")),
        ("content-type", Some("text/plain")),
        ("howdah-header-tenant", Some("a")),
        ("howdah-header-howdah-job-id", Some("99")),
        ("howdah-tags", Some("a%20b,%C3%BC")),
        ("traceparent", Some("00-1")),
        ("tracestate", None),
        ("x-key", Some("k")),
        ("howdah-signature", None),
    ]);
    for (name, value) in expected {
        assert_eq!(header(name), value, "{name}");
    }
}

#[tokio::test]
async fn a_signature_is_what_openssl_computes_over_the_request() {
    let (url, log) = server().await;
    let target = Target { secret: Secret::new("a secret\n"), ..target(&format!("{url}/upper?a=1")) };
    let post = Post::new(target).unwrap();
    assert!(!format!("{post:?}").contains("a secret"));
    let headers = [("content-type", "text/plain"), ("tenant", " a "), ("Signature", "forged")];
    assert_eq!(post.run(&attempt(&headers).await).await, Outcome::ack("HELLO"));
    let seen = log.lock()[0].clone();
    let header = |name: &str| seen.headers[name].to_str().unwrap().to_owned();
    let mut openssl = std::process::Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", "a secret"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let signed = format!(
        "v1\nPOST\n{url}/upper?a=1\ncontent-type:text/plain\nhowdah-attempt:2\nhowdah-header-signature:forged\n\
         howdah-header-tenant:a\nhowdah-job-id:17\nhowdah-max-attempts:10\nhowdah-task-type:hook\n\
         howdah-timestamp:{}\n\nhello",
        header("howdah-timestamp")
    );
    std::io::Write::write_all(&mut openssl.stdin.take().unwrap(), signed.as_bytes()).unwrap();
    let output = String::from_utf8(openssl.wait_with_output().unwrap().stdout).unwrap();
    let expected = output.trim().rsplit(' ').next().unwrap();
    assert_eq!(header("howdah-signature"), format!("v1={expected}"));
}

#[tokio::test]
async fn a_redirect_takes_headers_and_signature_along_to_the_same_origin_only() {
    let ((url, log), (other, other_log)) = (server().await, server().await);
    let signed = |to: &str| Target {
        headers: HeaderMap::from_iter([(HeaderName::from_static("x-api-key"), HeaderValue::from_static("s3cret"))]),
        secret: Secret::new("a secret"),
        ..target(&format!("{url}/to/307/{to}"))
    };
    assert_eq!(run(signed("upper")).await, Outcome::ack("HELLO"));
    let at_home = log.lock().clone();
    assert_eq!(at_home.len(), 2);
    assert!(at_home.iter().all(|seen| seen.headers["x-api-key"] == "s3cret"), "{at_home:?}");
    assert_ne!(at_home[0].headers["howdah-signature"], at_home[1].headers["howdah-signature"], "each has its own URL");
    assert_eq!(run(signed(&format!("?{other}/upper"))).await, Outcome::ack("HELLO"));
    let seen = other_log.lock()[0].clone();
    assert_eq!(seen.headers["howdah-job-id"], "17");
    for name in ["x-api-key", "howdah-signature", "howdah-timestamp", "authorization", "referer"] {
        assert!(!seen.headers.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn each_status_has_its_meaning() {
    let (url, _) = server().await;
    for (path, expected) in [
        ("204", Outcome::ack("")),
        ("201/made", Outcome::ack("made")),
        ("400/no such field", Outcome::fail("400 Bad Request: no such field")),
        ("404", Outcome::fail("404 Not Found")),
        ("408", Outcome::retry("408 Request Timeout")),
        ("425", Outcome::retry("425 Too Early")),
        ("429", Outcome::retry("429 Too Many Requests")),
        ("500/oops", Outcome::retry("500 Internal Server Error: oops")),
        ("304", Outcome::retry("304 Not Modified")),
        ("later/7", Outcome::retry_after("503 Service Unavailable: busy", Duration::from_secs(7))),
        ("later/Thu, 01 Jan 1970 00:00:00 GMT", Outcome::retry_after("503 Service Unavailable: busy", Duration::ZERO)),
        ("later/99999999999", Outcome::retry_after("503 Service Unavailable: busy", LATEST)),
        ("later/soon", Outcome::retry("503 Service Unavailable: busy")),
    ] {
        assert_eq!(post(&format!("{url}/{path}")).await, expected, "{path}");
    }
    let ending = post(&format!("{url}/large")).await;
    assert!(matches!(&ending, Outcome::Fail { error, .. } if error.contains("more than 1048576 bytes")), "{ending:?}");
}

#[tokio::test]
async fn requests_one_after_the_other_use_one_connection() {
    let (url, log) = server().await;
    let post = Post::new(target(&format!("{url}/upper"))).unwrap();
    for _ in 0..5 {
        assert_eq!(post.run(&attempt(&[]).await).await, Outcome::ack("HELLO"));
    }
    let log = log.lock();
    assert!(log.len() == 5 && log.iter().all(|seen| seen.peer == log[0].peer), "{log:?}");
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_a_failure_and_a_stopped_attempt_is_not_waited_for() {
    let (url, _) = server().await;
    let hang = format!("{url}/hang");
    let short = Target { timeout: Duration::from_millis(50), ..target(&hang) };
    let error = retried(run(short).await);
    assert!(error.starts_with("no answer in time"), "{error}");
    let stopped = attempt(&[]).await;
    stopped.stop.graceful.cancel();
    assert_eq!(Post::new(target(&hang)).unwrap().run(&stopped).await, Outcome::release());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_tried_again() {
    let error = retried(post("http://127.0.0.1:1/").await);
    assert!(error.contains("refused"), "{error}");
}

#[tokio::test]
async fn private_addresses_are_refused_however_they_are_written() {
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://user:pass@10.0.0.1/",
        "ftp://example.com/",
    ] {
        let target = Target { allow_private: false, ..target(url) };
        let problem = Post::new(target).map(|_| ()).unwrap_err();
        assert!(problem.contains("--allow-private") || problem.contains("ftp"), "{url}: {problem}");
    }
}

#[tokio::test]
async fn a_name_of_a_private_address_is_refused_when_it_is_looked_up() {
    let (url, log) = server().await;
    let named = format!("{}/upper", url.replace("127.0.0.1", "localhost"));
    let target = Target { allow_private: false, ..target(&named) };
    let error = retried(run(target).await);
    assert!(error.contains("--allow-private"), "{error}");
    assert!(log.lock().is_empty());
}

#[tokio::test]
async fn only_redirects_that_send_the_same_request_again_are_followed() {
    let (url, log) = server().await;
    for (path, expected) in [
        ("to/307/upper", Outcome::ack("HELLO")),
        ("to/308/to/307/upper", Outcome::ack("HELLO")),
        ("to/301/upper", Outcome::retry("301 Moved Permanently")),
        ("to/302/upper", Outcome::retry("302 Found")),
        ("to/303/upper", Outcome::retry("303 See Other")),
    ] {
        assert_eq!(post(&format!("{url}/{path}")).await, expected, "{path}");
    }
    let count = |method: &str| log.lock().iter().filter(|seen| seen.method == method).count();
    assert_eq!((count("POST"), count("GET")), (8, 0));
    let endless = format!("{url}/{}upper", "to/307/".repeat(20));
    let error = retried(post(&endless).await);
    assert!(error.contains("more than 5 redirects"), "{error}");
}

#[tokio::test]
async fn a_redirect_does_not_lead_into_our_own_network() {
    let (url, log) = server().await;
    let named = url.replace("127.0.0.1", "localhost");
    for to in [&url, &named, "http://[::ffff:a9fe:a9fe]/latest/meta-data"] {
        let mut post = Post::new(target(&format!("{url}/to/307/?{to}/upper"))).unwrap();
        // Allows private addresses only for the first request, as if its address were public.
        post.target.allow_private = false;
        post.client = client(&post.target).unwrap();
        let error = retried(post.run(&attempt(&[]).await).await);
        assert!(error.contains("--allow-private"), "{to}: {error}");
    }
    assert_eq!(log.lock().len(), 3, "no redirect was followed");
}

#[test]
fn a_redirect_never_leads_from_tls_to_plain_text() {
    let next = |from: &str, to: &str| {
        let headers = HeaderMap::from_iter([(LOCATION, to.parse().unwrap())]);
        address::redirect(&from.parse().unwrap(), StatusCode::PERMANENT_REDIRECT, &headers, 0, true)
    };
    let url = |text: &str| Ok(Some(text.parse().unwrap()));
    assert_eq!(next("http://a.example/x", "https://a.example/y"), url("https://a.example/y"));
    assert_eq!(next("https://a.example/x?q", "//b.example/y"), url("https://b.example/y"));
    assert_eq!(next("https://a.example/x", "/y"), url("https://a.example/y"));
    let plain = next("https://a.example/x", "http://a.example/x").unwrap_err();
    assert!(plain.contains("plain text"), "{plain}");
}

#[test]
fn redirects_are_checked_like_first_requests() {
    for (to, allow_private, is_fine) in [
        ("http://169.254.169.254/", false, false),
        ("http://[fe80::1]/", false, false),
        ("http://169.254.169.254/", true, true),
        ("https://example.com/", false, true),
        ("file:///etc/passwd", true, false),
    ] {
        assert_eq!(address::check(&to.parse().unwrap(), allow_private).is_ok(), is_fine, "{to}");
    }
}
