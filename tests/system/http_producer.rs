//! Tests enqueueing by HTTP, with the real curl.

use std::process::Stdio;

use howdah_proto::v1::JobState;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::*;

async fn broker() -> TestBroker {
    TestBroker::start_with(|config| config.http_enqueue = true).await
}

/// Sends a request with curl. Returns the status and the JSON of the response.
pub async fn curl(broker: &TestBroker, path: &str, headers: &[&str], body: &[u8]) -> (u16, Value) {
    let mut command = tokio::process::Command::new("curl");
    command.args(["-s", "-w", "\n%{http_code}", "--data-binary", "@-"]);
    // curl asks before it sends a large body, and by default sends the body after one second without a response. If a slow
    // broker then refuses the request, the connection breaks before curl reads the response.
    command.args(["--expect100-timeout", "60"]);
    for header in headers {
        command.args(["-H", header]);
    }
    let mut child = command
        .arg(format!("{}{path}", broker.http))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("curl");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(body).await.expect("write");
    drop(stdin);
    let output = with_timeout("an answer", child.wait_with_output()).await.expect("curl");
    let text = String::from_utf8(output.stdout).expect("text");
    let (body, status) = text.rsplit_once('\n').expect("a status");
    (status.parse().expect("a number"), serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn a_job_with_its_options_is_stored_byte_by_byte() {
    let broker = broker().await;
    let path = "/v1/jobs/mail/send?priority=-5&delay=1h&key=a%20b&headers.tenant=%C3%A9&timeout=30s";
    let (status, answer) =
        curl(&broker, path, &["Howdah-Max-Attempts: 3", "Howdah-Header-Lang: en", "Howdah-Priority: 9"], b"\0\xff\n")
            .await;
    assert_eq!((status, &answer["is_new"]), (200, &json!(true)), "{answer}");
    let id: i64 = answer["id"].as_str().expect("an id").parse().expect("a number");
    let job = broker.job(id).await;
    assert_eq!((job.task_type.as_str(), job.state(), job.priority), ("mail/send", JobState::Scheduled, -5));
    assert_eq!((&job.payload[..], job.key.as_str(), job.max_attempts), (&b"\0\xff\n"[..], "a b", 3));
    assert_eq!((job.headers["tenant"].as_str(), job.headers["lang"].as_str()), ("é", "en"));
    // The first job holds the key.
    let (_, again) = curl(&broker, path, &[], b"other").await;
    assert_eq!(again, json!({ "id": id.to_string(), "outcome": "ENQUEUE_OUTCOME_KEPT" }));
}

#[tokio::test]
async fn a_batch_is_stored_whole_or_not_at_all_and_repeating_it_is_safe() {
    let broker = broker().await;
    let batch = |second: &str| {
        let jobs = json!([{"task_type": "a", "payload": "eA=="}, {"task_type": second, "payload": "/w=="}]);
        json!({ "request_key": "r1", "jobs": jobs }).to_string()
    };
    let (status, error) = curl(&broker, "/v1/jobs", &[], batch("no spaces").as_bytes()).await;
    assert_eq!((status, &error["code"]), (400, &json!(3)));
    assert!(error["message"].as_str().unwrap().starts_with("jobs[1].task_type \"no spaces\""), "{error}");
    assert_eq!(error["details"][0]["reason"], "INVALID_FIELD");
    assert_eq!(error["details"][1]["fieldViolations"][0]["field"], "jobs[1].task_type");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
    let (status, first) = curl(&broker, "/v1/jobs", &[], batch("b").as_bytes()).await;
    assert_eq!((status, &first["jobs"][1]["is_new"]), (200, &json!(true)), "{first}");
    let (_, second) = curl(&broker, "/v1/jobs", &[], batch("b").as_bytes()).await;
    let repeated = json!("ENQUEUE_OUTCOME_REPEATED");
    assert_eq!((&second["jobs"][0]["id"], &second["jobs"][0]["outcome"]), (&first["jobs"][0]["id"], &repeated));
    let (status, error) = curl(&broker, "/v1/jobs", &[], batch("c").as_bytes()).await;
    assert_eq!((status, &error["details"][0]["reason"]), (409, &json!("REQUEST_KEY_REUSED")));
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready WHERE payload = '\\xff'").await, 1);
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_the_name_of_the_field_and_stores_nothing() {
    let broker = broker().await;
    let large = vec![b'x'; (1 << 20) + 1];
    for (path, headers, body, field) in [
        ("/v1/jobs/no%20spaces", &[][..], &b"x"[..], "task_type"),
        ("/v1/jobs/%FF", &[], b"x", "task_type"),
        ("/v1/jobs/a?priority=1001", &[], b"x", "priority"),
        ("/v1/jobs/a?priority=high", &[], b"x", "priority"),
        ("/v1/jobs/a?delay=4000days", &[], b"x", "delay"),
        ("/v1/jobs/a?prio=1", &[], b"x", "prio"),
        ("/v1/jobs/a", &["Howdah-Timeout: soon"], b"x", "timeout"),
        ("/v1/jobs/a", &["Origin: https://example.com"], b"x", "origin"),
        ("/v1/jobs/a", &[], &large, "body"),
        ("/v1/jobs/a", &["Transfer-Encoding: chunked"], &large, "body"),
        ("/v1/jobs", &[], b"not JSON", "body"),
        ("/v1/jobs", &[], br#"{"jobs": []}"#, "jobs"),
        ("/v1/jobs", &[], br#"{"jobs": [{"task_type": "a", "priority": 1001}]}"#, "jobs[0].priority"),
    ] {
        let (status, error) = curl(&broker, path, headers, body).await;
        assert_eq!(
            (status, &error["details"][1]["fieldViolations"][0]["field"]),
            (400, &json!(field)),
            "{path}: {error}"
        );
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
}

#[tokio::test]
async fn enqueueing_over_http_is_off_by_default() {
    let broker = TestBroker::start().await;
    assert_eq!(curl(&broker, "/v1/jobs/a", &[], b"x").await.0, 404);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
}
