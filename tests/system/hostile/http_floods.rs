//! Tests the HTTP port under floods: probes are answered, requests with an unknown Host are refused, and `/readyz` reports
//! problems.

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::{
    assert_serves,
    http::{ask, get, status},
};
use crate::support::{TestBroker, eventually, stores, with_timeout};

/// Opens connections that send these bytes and then nothing.
async fn stuck(broker: &TestBroker, count: usize, bytes: &str) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let address = broker.http.trim_start_matches("http://");
        let mut stream = with_timeout("a connection", TcpStream::connect(address)).await.expect("connect");
        with_timeout("room to write", stream.write_all(bytes.as_bytes())).await.expect("write");
        streams.push(stream);
    }
    streams
}

async fn assert_probed(broker: &TestBroker) {
    for path in ["/healthz", "/readyz", "/metrics"] {
        let answer = get(&broker.http, path).await;
        assert_eq!(status(&answer), "200", "{path}: {answer}");
    }
}

#[tokio::test]
async fn probes_are_answered_beside_idle_connections_and_slow_requests() {
    let broker = TestBroker::start_with(|config| config.http_enqueue = true).await;
    let _idle = stuck(&broker, 300, "").await;
    assert_probed(&broker).await;
    let _begun = stuck(&broker, 300, "GET /metrics HTTP/1.1\r\nHost: loc").await;
    assert_probed(&broker).await;
    let slow = "POST /v1/jobs/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx";
    let _slow = stuck(&broker, 300, slow).await;
    assert_probed(&broker).await;
    let late = ask(
        &broker.http,
        format!("{slow}123456789").replace("Length: 10", "Length: 10\r\nConnection: close").as_bytes(),
    )
    .await;
    assert!(["200", "503"].contains(&status(&late)), "{late}");
}

#[tokio::test]
async fn chunked_bodies_that_do_not_come_take_no_memory_from_others() {
    let broker = TestBroker::start_with(|config| {
        config.http_enqueue = true;
        config.limits.received_bytes = 1 << 20;
    })
    .await;
    let chunked = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{";
    let _chunked = stuck(&broker, 100, chunked).await;
    let body = format!("{{\"jobs\": [{{\"task_type\": \"t\", \"payload\": \"{}\"}}]}}", "eHh4".repeat(100_000));
    let length = body.len();
    let request = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    for _ in 0..3 {
        let answer = ask(&broker.http, request.as_bytes()).await;
        assert_eq!(status(&answer), "200", "{answer}");
    }
}

#[tokio::test]
async fn a_request_for_an_unknown_host_name_is_refused() {
    let broker = TestBroker::start_with(|config| {
        config.http_enqueue = true;
        config.http_host = vec!["broker.example".into(), "Other.Example".into()];
    })
    .await;
    let answered = async |host: &str, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        ask(&broker.http, request.as_bytes()).await
    };
    for known in ["localhost:7433", "127.0.0.1", "[::1]:1", "10.0.0.1:80", "broker.example", "other.example:7433"] {
        let answer = answered(&format!("Host: {known}\r\n"), "/metrics").await;
        assert_eq!(status(&answer), "200", "{known}: {answer}");
    }
    for unknown in ["evil.example", "127.0.0.1.evil.example:7433", "a"] {
        for path in ["/metrics", "/healthz", "/", "/nothing", "http://evil.example/metrics"] {
            let answer = answered(&format!("Host: {unknown}\r\n"), path).await;
            assert_eq!(status(&answer), "403", "{unknown} {path}: {answer}");
            assert!(answer.contains("--http-host") && !answer.contains("howdah_"), "{answer}");
        }
    }
    for wrong in ["", "Host: localhost\r\nHost: localhost\r\n"] {
        assert_eq!(status(&answered(wrong, "/metrics").await), "400", "{wrong:?}");
    }
    let post = "POST /v1/jobs/t HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx";
    assert_eq!(status(&ask(&broker.http, post.as_bytes()).await), "403");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
    assert_eq!(status(&ask(&broker.http, b"GET /healthz HTTP/1.0\r\n\r\n").await), "200");
}

#[tokio::test]
async fn a_broker_is_ready_when_jobs_can_be_stored_claimed_and_settled() {
    let broker = TestBroker::start().await;
    let drop_partitions = "DO $$ DECLARE part regclass; BEGIN
        FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent IN ('howdah.history'::regclass, 'howdah.payload'::regclass)
                    ORDER BY inhparent::regclass::text
        LOOP EXECUTE 'DROP TABLE ' || part; END LOOP; END $$";
    // Drops the partitions and asks `/readyz`. Repeats both, because the broker may recreate the partitions before the
    // request.
    eventually("a broker without partitions", async || {
        broker.sql(drop_partitions).await;
        let answer = get(&broker.http, stores::readyz()).await;
        status(&answer) == "503" && answer.contains("a partition of history or payloads is missing")
    })
    .await;
    // The broker has noticed the missing partitions, and creates them at once instead of at the next maintenance run.
    let ready = async || status(&get(&broker.http, stores::readyz()).await) == "200";
    eventually("a broker that is ready again", ready).await;
    assert_serves(&broker.grpc).await;
    broker.sql("ALTER SCHEMA howdah RENAME TO elsewhere").await;
    eventually("a broker that is not ready", async || {
        let answer = get(&broker.http, stores::readyz()).await;
        status(&answer) == "503" && answer.contains("the schema in the database is missing or incomplete")
    })
    .await;
    assert_eq!(status(&get(&broker.http, "/healthz").await), "200");
    broker.sql("ALTER SCHEMA elsewhere RENAME TO howdah").await;
    eventually("a broker that is ready again", ready).await;
}

#[tokio::test]
async fn a_broker_is_not_ready_while_a_table_or_a_partition_that_jobs_need_is_missing() {
    let broker = TestBroker::start().await;
    let answers = async |expected: &str| {
        let is_expected = async || status(&get(&broker.http, stores::readyz()).await) == expected;
        eventually(&format!("the answer {expected}"), is_expected).await;
    };
    for table in [
        "ready",
        "leased",
        "scheduled",
        "waiting",
        "dead",
        "history",
        "payload",
        "request",
        "job_key",
        "task_type",
        "settings",
        "broker",
        "dependency",
        "expiry",
        "limit_state",
        "fair_share",
    ] {
        answers("200").await;
        broker.sql(&format!("ALTER TABLE howdah.{table} RENAME TO gone")).await;
        let answer = get(&broker.http, stores::readyz()).await;
        assert_eq!(status(&answer), "503", "{table}: {answer}");
        broker.sql(&format!("ALTER TABLE howdah.gone RENAME TO {table}")).await;
    }
    answers("200").await;
    // The broker is not ready if one partition is missing, because acks of types with history, or enqueues of large
    // payloads, would fail.
    for parent in ["history", "payload"] {
        let drop_partitions = format!(
            "DO $$ DECLARE part regclass; BEGIN
             FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'howdah.{parent}'::regclass
             LOOP EXECUTE 'DROP TABLE ' || part; END LOOP; END $$"
        );
        eventually(&format!("a broker without partitions of {parent}"), async || {
            broker.sql(&drop_partitions).await;
            let answer = get(&broker.http, stores::readyz()).await;
            status(&answer) == "503" && answer.contains("a partition of")
        })
        .await;
        answers("200").await;
    }
    assert_serves(&broker.grpc).await;
}
