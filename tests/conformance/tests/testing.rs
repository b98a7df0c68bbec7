//! Tests typed handlers, and the module `testing` of the Rust client, with a real broker.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    env,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use howdah_client::{
    Job, JobError, NewJob, Outcome,
    proto::{JobState, Lease},
    testing::Broker,
};
use prost::Message as _;

async fn broker() -> Broker {
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_howdah-conformance")).with_file_name("howdah");
    Broker::start_program(env::var_os("HOWDAH_BIN").unwrap_or_else(|| beside.into())).await.unwrap()
}

#[tokio::test]
async fn a_test_has_a_broker_of_its_own() {
    let broker = broker().await;
    let client = broker.client().await.unwrap();
    assert!(client.enqueue(NewJob::new("mail.welcome")).await.unwrap().is_new);
    assert!(broker.database.starts_with("postgres://"), "{}", broker.database);
}

#[tokio::test]
async fn a_delayed_job_runs_when_the_clock_of_the_broker_advances() {
    const DELAY: Duration = Duration::from_secs(3 * 24 * 3600);
    let broker = broker().await;
    let client = broker.client().await.unwrap();
    let running = client.worker().handle("mail.remind", |_: Job| async { Ok::<_, JobError>(()) }).build().start();
    let id = client.enqueue(NewJob::new("mail.remind").delay(DELAY)).await.unwrap().id;
    let earliest = SystemTime::now() + DELAY;
    assert!(broker.advance(DELAY).await.unwrap() >= earliest);
    let job = client.wait_jobs([id], Duration::from_secs(60)).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(job.state(), JobState::Succeeded);
    let refused = broker.advance(Duration::ZERO).await.unwrap_err();
    assert_eq!(refused.field(), Some("duration"));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn payloads_are_read_as_messages_or_json_and_an_empty_payload_is_json_null() {
    let broker = broker().await;
    let client = broker.client().await.unwrap();
    let lease = |id| Lease { id, token: 7 };
    let running = client
        .worker()
        .handle_message("message", move |given: Lease, _: Job| async move { Outcome::message(&lease(given.id + 1)) })
        .handle_json("json", |given: Option<u32>, _: Job| async move { Outcome::json(&given) })
        .build()
        .start();
    let jobs = [
        NewJob::new("message").message(&lease(1)),
        NewJob::new("message").payload("\u{7f}"),
        NewJob::new("json"),
        NewJob::new("json").payload("5"),
    ];
    let ids: Vec<i64> = client.enqueue_all(jobs).await.unwrap().iter().map(|job| job.id).collect();
    let mut ended = client.wait_jobs(ids.clone(), Duration::from_secs(60)).await.unwrap();
    let mut results = BTreeMap::new();
    while let Some(job) = ended.next().await.unwrap() {
        results.insert(job.id, (job.state(), job.result));
    }
    let succeeded = |result: &[u8]| (JobState::Succeeded, Bytes::copy_from_slice(result));
    let expected =
        [succeeded(&lease(2).encode_to_vec()), (JobState::Dead, Bytes::new()), succeeded(b"null"), succeeded(b"5")];
    assert_eq!(results, ids.into_iter().zip(expected).collect());
    running.stop().await.unwrap();
}
