//! Tests every field of a worker's messages with values beyond its bounds. An invalid message ends the stream as if it had
//! broken; an invalid outcome or extension gets an individual error.

use howdah_proto::v1::{
    Ack, Extend, Extension, Lease, Nack, Outcome, Progress, ProgressReport, Settle, SettleStatus, Snooze, Subscribe,
    Window, outcome, work_request, work_response,
};
use prost::Message as _;
use prost_types::Duration;

use super::{assert_names, assert_serves, channel, enqueue, raw, refused};
use crate::support::{PATIENCE, TestBroker, Worker, ack, database, new_job, workers_client};

fn window(jobs: i32, bytes: i64) -> Window {
    Window { task_type: "good".into(), jobs, bytes }
}

fn bad_subscriptions() -> Vec<(&'static str, Subscribe)> {
    let none = Subscribe::default;
    let labels = |labels: Vec<(String, String)>| Subscribe { labels: labels.into_iter().collect(), ..none() };
    let windows = |bad| Subscribe { windows: vec![window(1, 0), bad], ..none() };
    let distinct = |n| Window { task_type: format!("t{n}"), jobs: 1, bytes: 0 };
    let mut bad = vec![
        ("window", Subscribe { window: 5, ..none() }),
        ("windows", Subscribe { windows: vec![window(1, 0); 1_001], ..none() }),
        ("windows", Subscribe { task_type: "one".into(), windows: (0..1_000).map(distinct).collect(), ..none() }),
        ("held", Subscribe { held: vec![Lease::new(1, 1); 100_001], ..none() }),
        ("labels", labels((0..17).map(|n| (n.to_string(), String::new())).collect())),
    ];
    for jobs in [-1, 100_001, i32::MIN, i32::MAX] {
        bad.push(("window", Subscribe { task_type: "good".into(), window: jobs, ..none() }));
        bad.push(("windows[1].jobs", windows(window(jobs, 0))));
    }
    for bytes in [-1, (1 << 30) + 1, i64::MIN, i64::MAX] {
        bad.push(("windows[1].bytes", windows(window(1, bytes))));
    }
    for text in ["x".repeat(201), "a\0".into(), "\u{1b}[2J".into(), "a\nb".into()] {
        bad.push(("session_id", Subscribe { session_id: text.clone(), ..none() }));
        bad.push(("labels", labels(vec![("name".into(), text.clone())])));
        bad.push(("labels", labels(vec![(text, "value".into())])));
    }
    for max_message_bytes in [1, 1_023, (1 << 30) + 1, -1, i32::MIN, i32::MAX] {
        bad.push(("max_message_bytes", Subscribe { max_message_bytes, ..none() }));
    }
    bad
}

#[tokio::test]
async fn a_subscription_with_any_field_out_of_its_bounds_is_refused() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    for (field, subscribe) in bad_subscriptions() {
        assert_names(&refused(Worker::try_subscribe(&broker.grpc, subscribe)).await, field);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.task_type").await, 0);
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn a_bad_message_ends_the_stream_and_the_worker_may_come_back_to_its_leases() {
    let database = database().await;
    // The grace time is so long that the worker reconnects in time, also on a slow machine.
    let broker = TestBroker::on_with(&database, |c| c.session_grace = PATIENCE).await;
    let settle = |count| work_request::Message::Settle(Settle { outcomes: vec![Outcome::default(); count] });
    let extend = |count| work_request::Message::Extend(Extend { extensions: vec![Extension::default(); count] });
    let progress =
        |count| work_request::Message::Progress(Progress { reports: vec![ProgressReport::default(); count] });
    let bad = [
        ("jobs", work_request::Message::Window(window(-1, 0))),
        ("jobs", work_request::Message::Window(window(i32::MAX, 0))),
        ("bytes", work_request::Message::Window(window(1, -1))),
        ("bytes", work_request::Message::Window(window(1, i64::MAX))),
        ("outcomes", settle(0)),
        ("outcomes", settle(10_001)),
        ("extensions", extend(0)),
        ("extensions", extend(10_001)),
        ("reports", progress(0)),
        ("reports", progress(10_001)),
    ];
    enqueue(&broker.grpc, vec![new_job("good", "")]).await;
    let mut worker = Worker::connect(&broker.grpc, "good", 1).await;
    let job = worker.next().await;
    let held = vec![Lease::new(job.id, job.token)];
    for (field, message) in bad {
        worker.send(message).await;
        assert_names(&refused(worker.message()).await, field);
        let session_id = worker.welcome.session_id.clone();
        worker =
            Worker::subscribe(&broker.grpc, Subscribe { session_id, held: held.clone(), ..Default::default() }).await;
        assert_eq!((&worker.welcome.kept, worker.welcome.lost.len()), (&held, 0), "{field}");
    }
    worker.ack(&job).await;
}

#[tokio::test]
async fn a_message_without_a_known_kind_is_refused_before_and_after_subscribing() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let channel = channel(&broker.grpc).await;
    let subscribe = work_request::Message::Subscribe(Subscribe { task_type: "good".into(), ..Default::default() });
    let subscribe = howdah_proto::v1::WorkRequest { message: Some(subscribe) }.encode_to_vec();
    // Sends an empty message, and two kinds of messages that a later version may have: field 15 (a message) and field 16 (a
    // number).
    for unknown in [&b""[..], b"\x7a\x02\x08\x01", b"\x80\x01\x07"] {
        let alone = tokio_stream::iter([unknown.to_vec().into()]);
        assert_names(&refused(raw::stream_end(&channel, raw::WORK, alone)).await, "message");
        let after = tokio_stream::iter([subscribe.clone().into(), unknown.to_vec().into()]);
        assert_names(&refused(raw::stream_end(&channel, raw::WORK, after)).await, "message");
    }
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn a_stream_has_a_thousand_types_and_not_one_more() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let windows = (0..1_000).map(|n| Window { task_type: format!("t{n}"), jobs: 1, bytes: 0 }).collect();
    let mut worker = Worker::subscribe(&broker.grpc, Subscribe { windows, ..Default::default() }).await;
    // Changing the window of a subscribed type does not count as another type.
    worker.send(work_request::Message::Window(Window { task_type: "t999".into(), jobs: 2, bytes: 0 })).await;
    enqueue(&broker.grpc, vec![new_job("t999", "")]).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    worker.send(work_request::Message::Window(window(1, 0))).await;
    assert_names(&refused(worker.message()).await, "window.task_type");
    assert_eq!(database.count("SELECT count(*) FROM howdah.task_type").await, 1_000);
}

fn duration(seconds: i64, nanos: i32) -> Option<Duration> {
    Some(Duration { seconds, nanos })
}

const YEAR: i64 = 365 * 24 * 3600;

/// Returns pairs of an invalid field and an outcome with this field.
fn bad_outcomes() -> Vec<(&'static str, Option<outcome::Outcome>)> {
    let nack = |retry_after| Some(outcome::Outcome::Nack(Nack { retry_after, ..Default::default() }));
    let snooze = |delay| Some(outcome::Outcome::Snooze(Snooze { delay }));
    let mut bad = vec![
        ("outcome", None),
        ("ack.result", Some(outcome::Outcome::Ack(Ack { result: vec![0; (1 << 20) + 1].into(), ..Ack::default() }))),
        ("snooze.delay", snooze(None)),
    ];
    for delay in [duration(-1, 0), duration(0, -1), duration(YEAR + 1, 0), duration(i64::MAX, i32::MAX)] {
        bad.extend([("nack.retry_after", nack(delay)), ("snooze.delay", snooze(delay))]);
    }
    bad
}

#[tokio::test]
async fn a_bad_outcome_is_answered_alone_and_its_lease_lives_on() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let bad = bad_outcomes();
    enqueue(&broker.grpc, vec![new_job("good", ""); bad.len() + 1]).await;
    let mut worker = Worker::connect(&broker.grpc, "good", 100).await;
    let mut jobs = Vec::new();
    for _ in 0..=bad.len() {
        jobs.push(worker.next().await);
    }
    let outcome = |(job, (_, outcome)): (&howdah_proto::v1::LeasedJob, &(_, Option<outcome::Outcome>))| Outcome {
        id: job.id,
        token: job.token,
        outcome: outcome.clone(),
    };
    // Sends the same outcomes twice: on the stream and by a call. The ack of the last job succeeds, and the jobs with invalid
    // outcomes stay leased.
    let mut outcomes: Vec<Outcome> = jobs.iter().zip(&bad).map(outcome).collect();
    outcomes.push(ack(&jobs[bad.len()]));
    worker.settle(outcomes.clone()).await;
    let mut answers = Vec::new();
    for _ in 0..outcomes.len() {
        answers.push(worker.settled().await);
    }
    answers.sort_by_key(|answer| answer.id);
    let request = howdah_proto::v1::SettleJobsRequest { outcomes };
    let called = workers_client(&broker.grpc).await.settle_jobs(request).await.expect("answers").into_inner().results;
    assert_eq!(answers, called, "stream and call answer alike");
    for (index, (answer, (field, _))) in answers.iter().zip(&bad).enumerate() {
        assert_eq!(answer.status(), SettleStatus::Invalid, "{answer:?}");
        assert!(answer.message.starts_with(&format!("outcomes[{index}].{field} ")), "{answer:?}");
    }
    assert_eq!(answers[bad.len()].status(), SettleStatus::Ok);
    for job in &jobs[..bad.len()] {
        worker.ack(job).await;
    }
}

#[tokio::test]
async fn a_bad_extension_is_answered_alone_and_its_lease_lives_on() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let month = 30 * 24 * 3600;
    let bad = [None, duration(0, 0), duration(0, 1), duration(-1, 0), duration(month + 1, 0), duration(i64::MAX, -1)];
    let timeout = duration(3600, 0);
    enqueue(&broker.grpc, vec![howdah_proto::v1::NewJob { timeout, ..new_job("good", "") }; bad.len() + 1]).await;
    let mut worker = Worker::connect(&broker.grpc, "good", 100).await;
    let mut extensions = Vec::new();
    for duration in bad.into_iter().chain([duration(60, 0)]) {
        let job = worker.next().await;
        extensions.push(Extension { id: job.id, token: job.token, duration });
    }
    worker.send(work_request::Message::Extend(Extend { extensions: extensions.clone() })).await;
    // The order of the responses is not fixed, because the broker finds some errors without its database.
    let mut answers = Vec::new();
    while answers.len() < extensions.len() {
        match worker.message().await.unwrap() {
            Some(work_response::Message::Extended(extended)) => answers.extend(extended.results),
            other => panic!("no answer: {other:?}"),
        }
    }
    answers.sort_by_key(|answer| answer.id);
    let request = howdah_proto::v1::ExtendJobsRequest { extensions };
    let called = workers_client(&broker.grpc).await.extend_jobs(request).await.expect("answers").into_inner().results;
    assert_eq!(answers, called, "stream and call answer alike");
    for (index, answer) in answers[..bad.len()].iter().enumerate() {
        assert_eq!(answer.status(), SettleStatus::Invalid, "{answer:?}");
        assert!(answer.message.starts_with(&format!("extensions[{index}].duration ")), "{answer:?}");
    }
    assert_eq!(answers[bad.len()].status(), SettleStatus::Ok);
    let moved = "SELECT count(*) FROM howdah.leased WHERE deadline < now() + interval '30 min'";
    assert_eq!(database.count(moved).await, 1);
}
