//! Tests that texts with a special meaning to Postgres, a shell, JSON or a terminal are stored unchanged.

use std::collections::HashMap;

use howdah_proto::v1::{
    Ack, EnqueueJobsRequest, JobState, Nack, NewJob, Outcome, SettleStatus, Subscribe, Window, outcome, work_request,
};

use super::{assert_names, assert_serves, enqueue, get, refused};
use crate::support::{OutcomeOptions as _, TestBroker, Worker, ack, database, jobs_client, nack, new_job};

/// Texts without control characters, valid in every field.
const TRICKS: [&str; 18] = [
    "'; DROP TABLE howdah.ready; --",
    "' OR '1'='1",
    "\"quoted\" `and` ''twice''",
    "$1 $$ $tag$ ${HOME} $(reboot)",
    "%s %n %27 100%",
    "../../../etc/passwd",
    "..\\..\\windows",
    "\\ \\\\ \\' \\u0000 \\x00 \\N \\.",
    "{\"json\": [1, null]}",
    "{1,2,\"a\",NULL}",
    "<script>alert(1)</script>&amp;",
    "\u{202e}\u{feff}\u{200b}é\u{301}🦀\u{10ffff}\u{ffff}",
    "NULL",
    "; rm -rf / #",
    "${jndi:ldap://x/y}",
    " leading and trailing ",
    "a=b;c=d,e",
    "-1",
];

/// Texts with control characters, valid in headers, payloads, results and errors.
const WILD: [&str; 4] = ["a\nb\r\n\tc", "\u{1b}[31mred\u{1b}]0;title\u{7}", "\u{9b}2J\u{85}\u{7f}", "\u{1}\u{1f}"];

#[tokio::test]
async fn texts_with_a_meaning_to_others_are_inert_and_come_back_byte_for_byte() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let windows = vec![Window { task_type: "t".into(), jobs: 1, bytes: 0 }];
    for (n, text) in TRICKS.into_iter().enumerate() {
        let wild = WILD[n % WILD.len()];
        let mut headers = HashMap::from([(text.to_owned(), text.to_owned()), (wild.to_owned(), wild.to_owned())]);
        headers.insert(String::new(), text.repeat(2));
        let job = NewJob {
            headers: headers.clone(),
            key: text.into(),
            traceparent: text.into(),
            tracestate: text.into(),
            ..new_job("t", text)
        };
        let request = EnqueueJobsRequest { jobs: vec![job.clone()], request_key: text.into() };
        let first = jobs.enqueue_jobs(request.clone()).await.expect(text).into_inner().jobs[0];
        let again = jobs.enqueue_jobs(request).await.expect(text).into_inner().jobs[0];
        assert_eq!((again.id, first.is_new, again.is_new), (first.id, true, false), "the request key {text}");
        assert_eq!(enqueue(&broker.grpc, vec![job]).await[0].id, first.id, "the key {text}");

        let labels = HashMap::from([(text.to_owned(), text.to_owned())]);
        let subscribe = Subscribe { windows: windows.clone(), labels, ..Default::default() };
        let mut worker = Worker::subscribe(&broker.grpc, subscribe).await;
        let job = worker.next().await;
        assert_eq!((&job.payload[..], &job.headers), (text.as_bytes(), &headers));
        assert_eq!((job.traceparent.as_str(), job.tracestate.as_str()), (text, text));
        let error = format!("{text}{wild}");
        worker.settle(vec![nack(&job, &error).at_once()]).await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
        let job = worker.next().await;
        // Closes the window, because this worker must not get the next job before the broker has noticed that it left.
        worker.send(work_request::Message::Window(Window { task_type: "t".into(), jobs: 0, bytes: 0 })).await;
        let result = outcome::Outcome::Ack(Ack { result: error.clone().into(), ..Ack::default() });
        worker.settle(vec![Outcome { outcome: Some(result), ..ack(&job) }]).await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);

        let job = get(&broker.grpc, first.id).await;
        assert_eq!((&job.payload[..], &job.headers, job.key.as_str()), (text.as_bytes(), &headers, text));
        assert_eq!((&job.result[..], job.failures[0].error.as_str()), (error.as_bytes(), error.as_str()));
        assert_eq!(job.state(), JobState::Succeeded);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.history").await, TRICKS.len() as i64);
}

#[tokio::test]
async fn a_nul_character_is_refused_where_postgres_cannot_keep_it_and_kept_where_it_can() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let with_key = NewJob { key: "a\0b".into(), ..new_job("t", "") };
    let header = |name: &str, value: &str| NewJob {
        headers: HashMap::from([("fine".into(), "fine".into()), (name.into(), value.into())]),
        ..new_job("t", "")
    };
    for (field, job) in [("key", with_key), ("headers", header("\0", "v")), ("headers", header("n", "v\0"))] {
        let request = EnqueueJobsRequest { jobs: vec![new_job("t", ""), job], ..Default::default() };
        assert_names(&refused(jobs.enqueue_jobs(request)).await, &format!("jobs[1].{field}"));
    }
    let request = EnqueueJobsRequest { jobs: vec![new_job("t", "")], request_key: "\0".into() };
    assert_names(&refused(jobs.enqueue_jobs(request)).await, "request_key");

    // Payloads and results may be any bytes. An error is a text, in which only NUL is replaced.
    let bytes: Vec<u8> = (0..=255).chain([0, 0, 0]).collect();
    let id = enqueue(&broker.grpc, vec![new_job("t", bytes.clone())]).await[0].id;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let job = worker.next().await;
    assert_eq!(job.payload, bytes);
    worker.settle(vec![nack(&job, "\0before\0after").at_once()]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    let job = worker.next().await;
    let result = outcome::Outcome::Ack(Ack { result: bytes.clone().into(), ..Ack::default() });
    worker.settle(vec![Outcome { outcome: Some(result), ..ack(&job) }]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    let job = get(&broker.grpc, id).await;
    assert_eq!((job.payload, job.result), (bytes.clone().into(), bytes.into()));
    assert_eq!(job.failures[0].error, "\u{fffd}before\u{fffd}after");
}

#[tokio::test]
async fn a_megabyte_of_error_text_is_truncated_and_marked_and_harms_nothing() {
    const LIMIT: usize = 16 << 10;
    const MARK: &str = "… [truncated]";
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let fits = "x".repeat(LIMIT);
    // The error of crab emojis has no character boundary at the limit, so it is cut before the character that crosses
    // the limit.
    let errors =
        ["x".repeat(1 << 20), "\0".repeat(1 << 20), "\u{1b}".repeat(1 << 20), "🦀".repeat(1 << 18), fits.clone()];
    let ids: Vec<i64> =
        enqueue(&broker.grpc, vec![new_job("t", ""); errors.len()]).await.iter().map(|j| j.id).collect();
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    for error in &errors {
        let job = worker.next().await;
        let dead = Nack { error: error.clone(), no_retry: true, ..Default::default() };
        worker.settle(vec![Outcome { outcome: Some(outcome::Outcome::Nack(dead)), ..ack(&job) }]).await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
    for (id, sent) in ids.iter().zip(&errors) {
        let job = get(&broker.grpc, *id).await;
        let kept = &job.failures[0].error;
        assert!(kept.len() <= LIMIT, "{} bytes", kept.len());
        if *sent == fits {
            assert_eq!(*kept, fits);
            continue;
        }
        assert!(kept.len() > LIMIT - 8, "{} bytes", kept.len());
        let text = kept.strip_suffix(MARK).expect("a mark");
        assert!(sent.replace('\0', "\u{fffd}").starts_with(text));
    }
    // After 150 failures, the job stores only its last hundred failures, and still fits into a message.
    let job = NewJob { max_attempts: 150, ..new_job("again", "") };
    let id = enqueue(&broker.grpc, vec![job]).await[0].id;
    let mut worker = Worker::connect(&broker.grpc, "again", 1).await;
    for _ in 0..150 {
        let job = worker.next().await;
        worker.settle(vec![nack(&job, &errors[0]).at_once()]).await;
    }
    for _ in 0..150 {
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
    let job = get(&broker.grpc, id).await;
    let attempts: Vec<u32> = job.failures.iter().map(|f| f.attempt).collect();
    assert_eq!((job.state(), attempts), (JobState::Dead, (51..=150).collect()));
    assert_serves(&broker.grpc).await;
}
