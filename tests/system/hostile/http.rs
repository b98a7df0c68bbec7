//! Tests that the HTTP port serves three paths (`/healthz`, `/readyz`, `/metrics`) and a list of these paths, and refuses
//! everything else.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{TestBroker, database, stores, with_timeout};

/// Sends these bytes to the HTTP port and reads the response to its end.
pub async fn ask(http: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(http.trim_start_matches("http://")).await.expect("connect");
    // The broker may close the connection before all bytes are written.
    let _ = with_timeout("room to write", stream.write_all(bytes)).await;
    let mut answer = Vec::new();
    // A reset of the connection also ends the response.
    let _ = with_timeout("the end of the answer", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

pub async fn get(http: &str, path: &str) -> String {
    ask(http, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await
}

pub(super) fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

async fn assert_well(http: &str) {
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", stores::all_ready().as_str())] {
        let answer = get(http, path).await;
        assert!(status(&answer) == "200" && answer.ends_with(body), "{path}: {answer}");
    }
    let list = get(http, "/").await;
    assert!(["/healthz", "/readyz", "/metrics"].iter().all(|path| list.contains(path)), "{list}");
    let metrics = stores::own_metrics(&get(http, "/metrics?x=%00%0d%0a&y=%3Cscript%3E").await);
    assert!(status(&metrics) == "200" && metrics.contains("howdah_enqueued_total"), "{metrics}");
    assert!(metrics.contains("howdah_connections 0\n"), "{metrics}");
    assert!(metrics.contains("# EOF\n"), "{metrics}");
    assert!(["<script", "%3Cscript"].iter().all(|echo| !metrics.contains(echo)), "{metrics}");
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_are_refused() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    for path in [
        "/nothing",
        "/metrics/",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/healthz/../../etc/passwd",
        "/healthz%00",
        "//healthz",
        "/HEALTHZ",
        "/howdah.v1.JobService/EnqueueJobs",
        "/'%3B%20DROP%20TABLE",
        "http://169.254.169.254/latest/meta-data",
        &format!("/{}", "x".repeat(10_000)),
    ] {
        let answer = get(&broker.http, path).await;
        assert!(["400", "404"].contains(&status(&answer)), "{path}: {answer}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"] {
        let request = format!(
            "{method} /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
        );
        let answer = ask(&broker.http, request.as_bytes()).await;
        assert!(["400", "404", "405"].contains(&status(&answer)), "{method}: {answer}");
    }
    assert_well(&broker.http).await;
}

#[tokio::test]
async fn huge_headers_and_random_bytes_are_refused_and_the_port_still_answers() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let start = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    for junk in [
        format!("X-Large: {}\r\n", "x".repeat(4 << 20)),
        "X-Many: y\r\n".repeat(100_000),
        "No colon\r\n".into(),
        "X: a\0b\r\n".into(),
        "Content-Length: -1\r\n".into(),
        "Content-Length: 5\r\nContent-Length: 6\r\n".into(),
        "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n".into(),
    ] {
        let answer = ask(&broker.http, format!("{start}{junk}\r\n").as_bytes()).await;
        let shown: String = junk.chars().take(40).collect();
        // The broker may answer normally if the junk is short, but must refuse long junk.
        let expected: &[&str] = if junk.len() > 100 { &["400", "431", ""] } else { &["400", "431", "", "200"] };
        assert!(expected.contains(&status(&answer)), "{shown}: {answer}");
    }
    let mut random = StdRng::seed_from_u64(13);
    for _ in 0..20 {
        let mut bytes = vec![0; 10_000];
        random.fill_bytes(&mut bytes);
        let answer = ask(&broker.http, &[&bytes[..], b"\r\n\r\n"].concat()).await;
        assert!(["400", ""].contains(&status(&answer)), "{answer}");
    }
    assert_well(&broker.http).await;
}

/// Tests request smuggling: a proxy that uses the other one of two lengths would read this body as a separate request.
#[tokio::test]
async fn a_request_with_two_lengths_is_the_last_one_of_its_connection() {
    let broker = TestBroker::start_with(|config| config.http_enqueue = true).await;
    let chunk = "1\r\nx\r\n0\r\n\r\n";
    let length = format!("Content-Length: {}\r\n", chunk.len());
    for lengths in
        [format!("Transfer-Encoding: chunked\r\n{length}"), format!("{length}Transfer-Encoding: chunked\r\n")]
    {
        let first = format!("POST /v1/jobs/t HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n{chunk}");
        let smuggled = "POST /v1/jobs/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
        let answer = ask(&broker.http, format!("{first}{smuggled}").as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job WHERE task_type = 'smuggled'").await, 0);
}

#[tokio::test]
async fn a_client_that_never_ends_its_request_is_closed_in_time() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    for begun in ["", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"] {
        let answer = ask(&broker.http, begun.as_bytes()).await;
        assert!(["400", "408", ""].contains(&status(&answer)), "{answer}");
    }
    assert_well(&broker.http).await;
}
