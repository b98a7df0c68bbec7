//! More than the broker or Postgres can take, from clients who do not wait and do not read. The broker is
//! a process of its own here, so that its memory can be told from ours.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use howdah_proto::v1::{
    Ack, EnqueueJobsRequest, Outcome, Ping, Settle, SettleStatus, StreamEnqueueRequest, Subscribe, WorkRequest,
    outcome, work_request,
};
use prost::Message as _;
use tonic::{Code, codegen::Bytes};

use super::{
    assert_serves, channel, enqueue, hold,
    raw::{self, CALLS, Frame, Http2, STREAM_ENQUEUE, WORK},
    until_still,
};
use crate::support::{Program, TestBroker, Worker, ack, database, new_job, soon, until};

const MIB: u64 = 1 << 20;

fn message(message: work_request::Message) -> Bytes {
    WorkRequest { message: Some(message) }.encode_to_vec().into()
}

fn subscribe(task_type: &str) -> Bytes {
    message(work_request::Message::Subscribe(Subscribe { task_type: task_type.into(), ..Default::default() }))
}

/// An ack of a lease that nobody has.
fn forged(id: i64, result: &Bytes) -> Outcome {
    Outcome { id, token: 1, outcome: Some(outcome::Outcome::Ack(Ack { result: result.clone() })) }
}

/// Counts what is taken out of it: what the transport has asked for.
fn counted(messages: impl Stream<Item = Bytes> + Send + 'static) -> (impl Stream<Item = Bytes>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counting = count.clone();
    let messages = messages.inspect(move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
    });
    (messages, count)
}

/// Sends all of these on a stream of work and never reads an answer, until they are gone or nobody takes
/// more of them; how many were taken, and by how much the broker has grown. It must be well afterwards.
async fn send_and_never_read(messages: impl Stream<Item = Bytes> + Send + 'static) -> (u64, u64) {
    let database = database().await;
    let (broker, grpc) = Program::serve(&database.url, &[]).await;
    let grpc = format!("http://{grpc}");
    assert_serves(&grpc).await;
    let channel = channel(&grpc).await;
    let before = broker.resident();
    let (messages, count) = counted(messages);
    let stream = raw::stream(&channel, WORK, messages).await.expect("a stream");
    until_still(&database, "the end of the flood", || count.load(Ordering::Relaxed)).await;
    let grown = broker.resident().saturating_sub(before);
    assert_serves(&grpc).await;
    drop(stream);
    (count.load(Ordering::Relaxed), grown)
}

#[tokio::test]
async fn a_worker_that_settles_and_never_reads_the_answers_is_not_read_for_ever() {
    // Half of them are answered without Postgres: nothing is set.
    let settle = |n: u64| {
        let outcomes = (0..5_000).map(|i| forged((n * 5_000 + i) as i64, &Bytes::new()));
        let unset = |outcome| if n % 2 == 0 { Outcome { outcome: None, ..outcome } } else { outcome };
        message(work_request::Message::Settle(Settle { outcomes: outcomes.map(unset).collect() }))
    };
    let messages = tokio_stream::iter([subscribe("t")]).chain(tokio_stream::iter((0..2_000).map(settle)));
    let (sent, grown) = send_and_never_read(messages).await;
    // 20,000 outcomes may be unanswered; a MiB of them and more is on its way.
    assert!(sent < 100, "{sent} messages of 5,000 outcomes were taken");
    assert!(grown < 64 * MIB, "it grew by {} MiB", grown / MIB);
}

#[tokio::test]
async fn a_worker_that_pings_and_never_reads_the_answers_costs_no_memory() {
    let pings = std::iter::repeat_n(message(work_request::Message::Ping(Ping {})), 2_000_000);
    let messages = tokio_stream::iter([subscribe("t")]).chain(tokio_stream::iter(pings));
    let (sent, grown) = send_and_never_read(messages).await;
    assert!(grown < 64 * MIB, "after {sent} pings it had grown by {} MiB", grown / MIB);
}

#[tokio::test]
async fn large_results_that_wait_for_postgres_are_bounded_in_bytes_too() {
    let database = database().await;
    let (broker, grpc) = Program::serve(&database.url, &[]).await;
    let grpc = format!("http://{grpc}");
    enqueue(&grpc, vec![new_job("t", "")]).await;
    let mut worker = Worker::connect(&grpc, "t", 1).await;
    let job = worker.job().await;
    let channel = channel(&grpc).await;
    let held = hold(&database, "howdah.leased").await;
    let before = broker.resident();
    // 600 outcomes, 600 MiB; 20,000 outcomes would be allowed.
    let result = Bytes::from(vec![7; 1 << 20]);
    let settle = move |n: i64| {
        let outcomes = (0..15).map(|i| forged(1_000 + n * 15 + i, &result)).collect();
        message(work_request::Message::Settle(Settle { outcomes }))
    };
    let (messages, count) =
        counted(tokio_stream::iter([subscribe("t")]).chain(tokio_stream::iter((0..40).map(settle))));
    let stream = raw::stream(&channel, WORK, messages).await.expect("a stream");
    until_still(&database, "the end of the flood", || count.load(Ordering::Relaxed)).await;
    let grown = broker.resident().saturating_sub(before);
    worker.settle(vec![ack(&job)]).await;
    held.batch_execute("COMMIT").await.expect("commit");
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok, "another worker's");
    drop(stream);
    assert!(grown < 256 * MIB, "with {} MiB taken, it grew by {} MiB", count.load(Ordering::Relaxed) * 15, grown / MIB);
    assert_serves(&grpc).await;
}

#[tokio::test]
async fn large_enqueues_that_wait_for_postgres_are_bounded_in_bytes() {
    let database = database().await;
    let (broker, grpc) = Program::serve(&database.url, &[]).await;
    let grpc = format!("http://{grpc}");
    assert_serves(&grpc).await;
    let channel = channel(&grpc).await;
    let held = hold(&database, "howdah.ready").await;
    let before = broker.resident();
    // 40 calls of 15 MiB at once; 64 MiB may have gathered.
    let request = EnqueueJobsRequest { jobs: vec![new_job("t", vec![7; 1 << 20]); 15], ..Default::default() };
    let request = Bytes::from(request.encode_to_vec());
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (channel, request) = (channel.clone(), request.clone());
        calls.spawn(async move { raw::call(&channel, CALLS[0], request).await });
    }
    let grown = AtomicU64::new(0);
    until_still(&database, "the end of the flood", || {
        grown.fetch_max(broker.resident().saturating_sub(before), Ordering::Relaxed);
        grown.load(Ordering::Relaxed) / MIB
    })
    .await;
    held.batch_execute("COMMIT").await.expect("commit");
    while let Some(answer) = soon("an answer", calls.join_next()).await {
        if let Err(status) = answer.expect("no panic") {
            assert!([Code::Unavailable, Code::ResourceExhausted].contains(&status.code()), "{status:?}");
        }
    }
    let grown = grown.into_inner();
    assert!(grown < 300 * MIB, "it grew by {} MiB", grown / MIB);
    assert_serves(&grpc).await;
}

#[tokio::test]
async fn five_thousand_small_acks_while_settling_is_blocked_are_all_answered_ok_on_the_same_stream() {
    const JOBS: usize = 5_000;
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", ""); JOBS]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", JOBS as i32).await;
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        jobs.push(worker.job().await);
    }
    let held = hold(&database, "howdah.leased").await;
    for job in &jobs {
        worker.settle(vec![ack(job)]).await;
    }
    // Longer than anything is gathered for; shorter than the broker's patience with Postgres.
    held.batch_execute("SELECT pg_sleep(3); COMMIT").await.expect("three seconds");
    for _ in 0..JOBS {
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.history").await, JOBS as i64);
}

/// Sends small messages, each in a DATA frame of its own, while a table is held; then lets go of it and
/// waits for the end of the stream. Returns the reason of a GOAWAY, if one came.
async fn small_frames_while_held(table: &str, path: &str, messages: Vec<Bytes>) -> Option<u32> {
    let database = database().await;
    let broker = TestBroker::start_with(&database, |c| c.database_timeout = Duration::from_secs(60)).await;
    let held = hold(&database, table).await;
    let mut http = Http2::connect(&broker.grpc).await;
    http.write(&raw::headers(1, path)).await.expect("write");
    // The end of our side is a frame too, and not a small one.
    let frames: Vec<Vec<u8>> = messages.iter().map(|message| raw::data(1, message)).collect();
    let mut held = Some(held);
    for chunk in frames.chunks(500) {
        let bytes: usize = chunk.iter().map(|frame| frame.len() - 9).sum();
        while http.room() < bytes as i64 {
            // With every window full, there is no more to say before something is read.
            let wait = http.next();
            let next = match &held {
                Some(client) => tokio::select! {
                    next = wait => Some(next),
                    _ = client.batch_execute("SELECT pg_sleep(2)") => None,
                },
                None => Some(wait.await),
            };
            match next {
                Some(Some(frame)) if frame.kind == Frame::GOAWAY => return Some(frame.reason()),
                Some(Some(_)) => {}
                Some(None) => panic!("the connection ended"),
                None => drop(held.take()),
            }
        }
        if http.write_data(&chunk.concat(), bytes).await.is_err() {
            break;
        }
    }
    drop(held);
    let _ = http.write(&raw::frame(Frame::DATA, Frame::END_STREAM, 1, &[])).await;
    loop {
        match http.next().await {
            Some(frame) if frame.kind == Frame::GOAWAY => return Some(frame.reason()),
            Some(frame) if frame.ends_stream() => break,
            Some(_) => {}
            None => panic!("the connection ended"),
        }
    }
    None
}

#[tokio::test]
async fn a_pipeline_of_small_requests_that_pile_up_keeps_its_connection() {
    let request = |sequence| {
        let jobs = vec![new_job("t", "tiny")];
        Bytes::from(StreamEnqueueRequest { sequence, jobs, ..Default::default() }.encode_to_vec())
    };
    let goaway = small_frames_while_held("howdah.ready", STREAM_ENQUEUE, (0..30_000).map(request).collect()).await;
    assert_eq!(goaway, None, "11 is ENHANCE_YOUR_CALM");
}

#[tokio::test]
async fn a_worker_with_fifty_thousand_small_acks_under_way_keeps_its_connection() {
    let settle = |id| message(work_request::Message::Settle(Settle { outcomes: vec![forged(id, &Bytes::new())] }));
    let messages = std::iter::once(subscribe("t")).chain((0..50_000).map(settle)).collect();
    let goaway = small_frames_while_held("howdah.leased", WORK, messages).await;
    assert_eq!(goaway, None, "11 is ENHANCE_YOUR_CALM");
}

#[tokio::test]
async fn a_worker_that_settles_one_job_ten_thousand_times_does_not_hold_up_the_others() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", "")]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let job = worker.job().await;
    let mut hostile = Worker::subscribe(&broker.grpc, Subscribe::default()).await;
    let other = howdah_proto::v1::LeasedJob { token: job.token ^ 1, ..job.clone() };
    for _ in 0..10_000 {
        hostile.settle(vec![ack(&other)]).await;
    }
    let begun = std::time::Instant::now();
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    eprintln!("DEBUG {:?}", begun.elapsed());
    let slow = "SELECT count(*) FROM howdah.history WHERE finished - leased_at > interval '30 s'";
    assert_eq!(database.count(slow).await, 0);
    for _ in 0..10_000 {
        assert_eq!(hostile.settled().await.status(), SettleStatus::LeaseLost);
    }
    until(&database, "no lease", "SELECT count(*) = 0 FROM howdah.leased").await;
}
