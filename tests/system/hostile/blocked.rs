//! Tests requests that pile up while Postgres does not respond. Their memory is bounded in bytes, whatever they contain, and no
//! connection breaks. Tests that measure memory run the broker as a separate process.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use howdah_proto::v1::{Settle, SettleStatus, StreamEnqueueRequest, work_request};
use prost::Message as _;
use tonic::codegen::Bytes;

use super::{
    assert_serves, channel, enqueue,
    floods::{MIB, counted, forged, message, subscribe},
    hold,
    raw::{self, Frame, Http2, STREAM_ENQUEUE, WORK},
};
use crate::support::{PATIENCE, Program, TestBroker, Worker, ack, database, new_job, sized, until_still, with_timeout};

#[tokio::test]
async fn five_thousand_small_acks_while_settling_is_blocked_are_all_answered_ok_on_the_same_stream() {
    const JOBS: usize = 5_000;
    let database = database().await;
    // Lets the broker wait for Postgres as long as the test does, also on a slow machine.
    let broker = TestBroker::on_with(&database, |c| c.database_timeout = PATIENCE).await;
    enqueue(&broker.grpc, vec![new_job("t", ""); JOBS]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", JOBS as i32).await;
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        jobs.push(worker.next().await);
    }
    let held = hold(&database, "howdah.leased").await;
    for job in &jobs {
        worker.settle(vec![ack(job)]).await;
    }
    // Once the broker answers the ping, it has read all outcomes. The first outcomes wait for Postgres.
    worker.ping().await;
    database.until_blocked().await;
    held.batch_execute("COMMIT").await.expect("commit");
    for _ in 0..JOBS {
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.history").await, JOBS as i64);
}

/// Sends messages while settling is blocked, and reads every response, until the broker accepts no more messages. Returns the
/// number of accepted messages and the growth of the broker's memory. Afterwards, the ack of another worker succeeds.
async fn settle_while_blocked(messages: Vec<Bytes>) -> (u64, u64) {
    let database = database().await;
    let broker = Program::serve(&database, &[]).await;
    let grpc = broker.address();
    let grpc = format!("http://{grpc}");
    enqueue(&grpc, vec![new_job("t", "")]).await;
    let mut worker = Worker::connect(&grpc, "t", 1).await;
    let job = worker.next().await;
    let channel = channel(&grpc).await;
    let held = hold(&database, "howdah.leased").await;
    let before = broker.program.resident();
    let (messages, count) = counted(futures::stream::iter([subscribe("u")].into_iter().chain(messages)));
    let mut stream = raw::stream(&channel, WORK, messages).await.expect("a stream");
    let reading = tokio::spawn(async move { while stream.message().await.is_ok_and(|m| m.is_some()) {} });
    until_still("the end of the flood", || count.load(Ordering::Relaxed)).await;
    let (taken, grown) = (count.load(Ordering::Relaxed), broker.program.resident().saturating_sub(before));
    worker.settle(vec![ack(&job)]).await;
    held.batch_execute("COMMIT").await.expect("commit");
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok, "the ack of another worker");
    with_timeout("answers to all messages", reading).await.expect("no panic");
    assert_serves(&grpc).await;
    (taken, grown)
}

#[tokio::test]
async fn large_results_that_wait_for_postgres_are_bounded_in_bytes_too() {
    // 600 outcomes of 1 MiB each. The limit of 20,000 unanswered outcomes would permit them.
    let result = Bytes::from(vec![7; 1 << 20]);
    let settle = |n: u64| {
        let outcomes = (0..15).map(|i| forged((1_000 + n * 15 + i) as i64, &result)).collect();
        message(work_request::Message::Settle(Settle { outcomes }))
    };
    let (taken, grown) = settle_while_blocked((0..large_messages()).map(settle).collect()).await;
    assert!(grown < 256 * MIB, "with {} MiB taken, the broker grew by {} MiB", taken * 15, grown / MIB);
}

/// Number of messages of 15 MiB whose total size exceeds 256 MiB, the permitted growth of the broker.
fn large_messages() -> u64 {
    sized(24, 40)
}

/// Returns an unknown protobuf field of 15 MiB.
fn junk() -> Vec<u8> {
    let mut junk = Vec::new();
    prost::encoding::encode_key(15, prost::encoding::WireType::LengthDelimited, &mut junk);
    prost::encoding::encode_varint(15 << 20, &mut junk);
    junk.resize(junk.len() + (15 << 20), 7);
    junk
}

#[tokio::test]
async fn a_small_result_in_a_large_message_does_not_keep_all_of_the_message() {
    let (result, junk) = (Bytes::from_static(b"x"), junk());
    let settle = |n: u64| {
        let settle =
            message(work_request::Message::Settle(Settle { outcomes: vec![forged((1_000 + n) as i64, &result)] }));
        Bytes::from([&settle[..], &junk].concat())
    };
    let (taken, grown) = settle_while_blocked((0..large_messages()).map(settle).collect()).await;
    assert!(grown < 256 * MIB, "with {} MiB taken, the broker grew by {} MiB", taken * 15, grown / MIB);
}

#[tokio::test]
async fn a_small_payload_in_a_large_message_does_not_keep_all_of_the_message() {
    let database = database().await;
    let broker = Program::serve(&database, &[]).await;
    let grpc = broker.address();
    let grpc = format!("http://{grpc}");
    assert_serves(&grpc).await;
    let channel = channel(&grpc).await;
    let held = hold(&database, "howdah.ready").await;
    let before = broker.program.resident();
    let junk = junk();
    let requests = (0..large_messages()).map(move |sequence| {
        let request = StreamEnqueueRequest { sequence, jobs: vec![new_job("t", "x")], ..Default::default() };
        Bytes::from([&request.encode_to_vec()[..], &junk].concat())
    });
    let (requests, count) = counted(futures::stream::iter(requests));
    let mut answers = raw::stream(&channel, STREAM_ENQUEUE, requests).await.expect("a stream");
    until_still("the end of the flood", || count.load(Ordering::Relaxed)).await;
    let (taken, grown) = (count.load(Ordering::Relaxed), broker.program.resident().saturating_sub(before));
    held.batch_execute("COMMIT").await.expect("commit");
    for _ in 0..large_messages() {
        with_timeout("an answer", answers.message()).await.expect("an open stream").expect("an answer");
    }
    assert!(grown < 256 * MIB, "with {} MiB taken, the broker grew by {} MiB", taken * 15, grown / MIB);
}

/// Sends small messages, each in a separate DATA frame as most gRPC libraries do, as fast as flow control permits. A table is
/// locked until the broker accepts no more messages. Returns the error code of a GOAWAY, if one came before the end of the
/// stream.
async fn small_frames_while_held(table: &str, path: &str, messages: Vec<Bytes>) -> Option<u32> {
    let database = database().await;
    let queued = sized(10_000, 100_000);
    let broker = TestBroker::on_with(&database, |config| config.limits.gathered_jobs = queued).await;
    let held = hold(&database, table).await;
    let sent = Arc::new(AtomicU64::new(0));
    let held = tokio::spawn({
        let sent = sent.clone();
        async move {
            until_still("the end of the flood", || sent.load(Ordering::Relaxed)).await;
            held.batch_execute("COMMIT").await
        }
    });
    let mut http = Http2::connect(&broker.grpc).await;
    http.write(&raw::headers(1, path)).await.expect("write");
    let frames: Vec<Vec<u8>> = messages.iter().map(|message| raw::data(1, message)).collect();
    for chunk in frames.chunks(500) {
        let bytes: usize = chunk.iter().map(|frame| frame.len() - 9).sum();
        while http.room() < bytes as i64 {
            let next = http.next().await.expect("an open connection");
            if next.kind == Frame::GOAWAY {
                return Some(next.reason());
            }
        }
        if http.write_data(&chunk.concat(), bytes).await.is_err() {
            break;
        }
        sent.fetch_add(1, Ordering::Relaxed);
    }
    with_timeout("the end of the lock", held).await.expect("no panic").expect("commit");
    let _ = http.write(&raw::frame(Frame::DATA, Frame::END_STREAM, 1, &[])).await;
    loop {
        let next = http.next().await.expect("an open connection");
        if next.kind == Frame::GOAWAY {
            return Some(next.reason());
        }
        if next.ends_stream() {
            return None;
        }
    }
}

#[tokio::test]
async fn a_pipeline_of_the_smallest_requests_that_pile_up_keeps_its_connection() {
    let request = |sequence| {
        let jobs = vec![new_job("t", "")];
        Bytes::from(StreamEnqueueRequest { sequence, jobs, ..Default::default() }.encode_to_vec())
    };
    let goaway =
        small_frames_while_held("howdah.ready", STREAM_ENQUEUE, (0..sized(11_000, 110_000)).map(request).collect())
            .await;
    assert_eq!(goaway, None, "11 is ENHANCE_YOUR_CALM");
}

#[tokio::test]
async fn a_worker_with_many_small_acks_under_way_keeps_its_connection() {
    let settle = |id| message(work_request::Message::Settle(Settle { outcomes: vec![forged(id, &Bytes::new())] }));
    let messages = std::iter::once(subscribe("t")).chain((0..sized(10_000, 50_000)).map(settle)).collect();
    let goaway = small_frames_while_held("howdah.leased", WORK, messages).await;
    assert_eq!(goaway, None, "11 is ENHANCE_YOUR_CALM");
}
