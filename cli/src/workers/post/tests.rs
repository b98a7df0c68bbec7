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

fn attempt() -> Attempt {
    Attempt {
        id: 17,
        task_type: "hook".into(),
        attempt: 2,
        max_attempts: 10,
        payload: "hello".into(),
        ..Attempt::default()
    }
}

async fn post(url: &str) -> Ending {
    Post::new(target(url), StopTokens::default()).unwrap().run(&attempt(), pending()).await
}

#[tokio::test]
async fn an_answer_may_name_the_next_stage() {
    let (url, _) = server().await;
    assert_eq!(post(&format!("{url}/stage/mail")).await, Ending::Advanced("hello".into(), "mail".into()));
    let Ending::Failed(error) = post(&format!("{url}/stage/no%20such")).await else { panic!("it continued") };
    assert!(error.contains("the next stage") && error.contains("no such"), "{error}");
}

#[tokio::test]
async fn a_request_says_which_job_it_is_and_its_answer_is_the_result() {
    let (url, log) = server().await;
    let mut target = target(&format!("{url}/upper"));
    target.method = Method::PUT;
    target.headers = HeaderMap::from_iter([(HeaderName::from_static("x-key"), HeaderValue::from_static("k"))]);
    let headers = [("content-type", "text/plain"), ("tenant", "a"), ("bad name", "b"), ("Howdah-Job-Id", "99")];
    let job = Attempt {
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        tags: vec!["a b".into(), "ü".into()],
        traceparent: "00-1".into(),
        tracestate: String::new(),
        ..attempt()
    };
    let ending = Post::new(target, StopTokens::default()).unwrap().run(&job, pending()).await;
    assert_eq!(ending, Ending::Done("HELLO".into()));
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
    let post = Post::new(target, StopTokens::default()).unwrap();
    assert!(!format!("{post:?}").contains("a secret"));
    let headers = [("content-type", "text/plain"), ("tenant", " a "), ("Signature", "forged")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    post.run(&Attempt { headers, ..attempt() }, pending()).await;
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
    let own = Post::new(signed("upper"), StopTokens::default()).unwrap();
    assert_eq!(own.run(&attempt(), pending()).await, Ending::Done("HELLO".into()));
    let at_home = log.lock().clone();
    assert_eq!(at_home.len(), 2);
    assert!(at_home.iter().all(|seen| seen.headers["x-api-key"] == "s3cret"), "{at_home:?}");
    assert_ne!(at_home[0].headers["howdah-signature"], at_home[1].headers["howdah-signature"], "each has its own URL");
    let away = Post::new(signed(&format!("?{other}/upper")), StopTokens::default()).unwrap();
    assert_eq!(away.run(&attempt(), pending()).await, Ending::Done("HELLO".into()));
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
        ("204", Ending::Done("".into())),
        ("201/made", Ending::Done("made".into())),
        ("400/no such field", Ending::FailedForGood("400 Bad Request: no such field".into())),
        ("404", Ending::FailedForGood("404 Not Found".into())),
        ("408", Ending::Failed("408 Request Timeout".into())),
        ("425", Ending::Failed("425 Too Early".into())),
        ("429", Ending::Failed("429 Too Many Requests".into())),
        ("500/oops", Ending::Failed("500 Internal Server Error: oops".into())),
        ("304", Ending::Failed("304 Not Modified".into())),
        ("later/7", Ending::RetryAfter("503 Service Unavailable: busy".into(), Duration::from_secs(7))),
        (
            "later/Thu, 01 Jan 1970 00:00:00 GMT",
            Ending::RetryAfter("503 Service Unavailable: busy".into(), Duration::ZERO),
        ),
        ("later/99999999999", Ending::RetryAfter("503 Service Unavailable: busy".into(), LATEST)),
        ("later/soon", Ending::Failed("503 Service Unavailable: busy".into())),
    ] {
        assert_eq!(post(&format!("{url}/{path}")).await, expected, "{path}");
    }
    let ending = post(&format!("{url}/large")).await;
    assert!(matches!(&ending, Ending::FailedForGood(error) if error.contains("more than 1048576 bytes")), "{ending:?}");
}

#[tokio::test]
async fn requests_one_after_the_other_use_one_connection() {
    let (url, log) = server().await;
    let post = Post::new(target(&format!("{url}/upper")), StopTokens::default()).unwrap();
    for _ in 0..5 {
        assert_eq!(post.run(&attempt(), pending()).await, Ending::Done("HELLO".into()));
    }
    let log = log.lock();
    assert!(log.len() == 5 && log.iter().all(|seen| seen.peer == log[0].peer), "{log:?}");
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_a_failure_and_a_cancelled_job_is_not_waited_for() {
    let (url, _) = server().await;
    let hang = format!("{url}/hang");
    let short = Target { timeout: Duration::from_millis(50), ..target(&hang) };
    let ending = Post::new(short, StopTokens::default()).unwrap().run(&attempt(), pending()).await;
    assert!(matches!(&ending, Ending::Failed(error) if error.starts_with("no answer in time")), "{ending:?}");
    let stop_tokens = StopTokens::default();
    let post = Post::new(target(&hang), stop_tokens.clone()).unwrap();
    assert_eq!(post.run(&attempt(), async {}).await, Ending::Cancelled);
    stop_tokens.graceful.cancel();
    assert_eq!(post.run(&attempt(), pending()).await, Ending::Released);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_tried_again() {
    let ending = post("http://127.0.0.1:1/").await;
    assert!(matches!(&ending, Ending::Failed(error) if error.contains("refused")), "{ending:?}");
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
        let problem = Post::new(target, StopTokens::default()).map(|_| ()).unwrap_err();
        assert!(problem.contains("--allow-private") || problem.contains("ftp"), "{url}: {problem}");
    }
}

#[tokio::test]
async fn a_name_of_a_private_address_is_refused_when_it_is_looked_up() {
    let (url, log) = server().await;
    let named = format!("{}/upper", url.replace("127.0.0.1", "localhost"));
    let target = Target { allow_private: false, ..target(&named) };
    let ending = Post::new(target, StopTokens::default()).unwrap().run(&attempt(), pending()).await;
    assert!(matches!(&ending, Ending::Failed(error) if error.contains("--allow-private")), "{ending:?}");
    assert!(log.lock().is_empty());
}

#[tokio::test]
async fn only_redirects_that_send_the_same_request_again_are_followed() {
    let (url, log) = server().await;
    for (path, expected) in [
        ("to/307/upper", Ending::Done("HELLO".into())),
        ("to/308/to/307/upper", Ending::Done("HELLO".into())),
        ("to/301/upper", Ending::Failed("301 Moved Permanently".into())),
        ("to/302/upper", Ending::Failed("302 Found".into())),
        ("to/303/upper", Ending::Failed("303 See Other".into())),
    ] {
        assert_eq!(post(&format!("{url}/{path}")).await, expected, "{path}");
    }
    let count = |method: &str| log.lock().iter().filter(|seen| seen.method == method).count();
    assert_eq!((count("POST"), count("GET")), (8, 0));
    let endless = format!("{url}/{}upper", "to/307/".repeat(20));
    let ending = post(&endless).await;
    assert!(matches!(&ending, Ending::Failed(error) if error.contains("more than 5 redirects")), "{ending:?}");
}

#[tokio::test]
async fn a_redirect_does_not_lead_into_our_own_network() {
    let (url, log) = server().await;
    let named = url.replace("127.0.0.1", "localhost");
    for to in [&url, &named, "http://[::ffff:a9fe:a9fe]/latest/meta-data"] {
        let mut post = Post::new(target(&format!("{url}/to/307/?{to}/upper")), StopTokens::default()).unwrap();
        // Allows private addresses only for the first request, as if its address were public.
        post.target.allow_private = false;
        post.client = client(&post.target).unwrap();
        let ending = post.run(&attempt(), pending()).await;
        assert!(matches!(&ending, Ending::Failed(error) if error.contains("--allow-private")), "{to}: {ending:?}");
    }
    assert_eq!(log.lock().len(), 3, "no redirect was followed");
}

#[test]
fn a_redirect_never_leads_from_tls_to_plain_text() {
    let next = |from: &str, to: &str| {
        let headers = HeaderMap::from_iter([(LOCATION, to.parse().unwrap())]);
        redirect::next(&from.parse().unwrap(), StatusCode::PERMANENT_REDIRECT, &headers, 0, true)
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
        assert_eq!(redirect::check(&to.parse().unwrap(), allow_private).is_ok(), is_fine, "{to}");
    }
}
