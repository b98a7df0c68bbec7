//! Tests floods from clients that neither wait for responses nor read them. Tests that measure memory run the broker as
//! a separate process.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::{Stream, StreamExt as _};
use howdah_proto::v1::{
    Ack, EnqueueJobsRequest, Outcome, Ping, Settle, SettleStatus, Subscribe, WorkRequest, outcome, work_request,
};
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::{Code, codegen::Bytes};

use super::{
    assert_serves, channel, enqueue, hold,
    raw::{self, CALLS, WORK},
};
use crate::support::{Program, TestBroker, Worker, ack, database, new_job, sized, until_still, with_timeout};

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn message(message: work_request::Message) -> Bytes {
    WorkRequest { message: Some(message) }.encode_to_vec().into()
}

pub(super) fn subscribe(task_type: &str) -> Bytes {
    message(work_request::Message::Subscribe(Subscribe { task_type: task_type.into(), ..Default::default() }))
}

/// Returns an ack of a lease that does not exist.
pub(super) fn forged(id: i64, result: &Bytes) -> Outcome {
    Outcome { id, token: 1, outcome: Some(outcome::Outcome::Ack(Ack { result: result.clone(), ..Ack::default() })) }
}

/// Counts the messages that gRPC takes from the stream to send them.
pub(super) fn counted(
    messages: impl Stream<Item = Bytes> + Send + 'static,
) -> (impl Stream<Item = Bytes>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counting = count.clone();
    let messages = messages.inspect(move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
    });
    (messages, count)
}

/// Sends messages on a work stream and never reads, until all are sent or the broker accepts no more. Returns the number of
/// sent messages and the growth of the broker's memory. Afterwards the broker still works.
async fn send_and_never_read(messages: impl Stream<Item = Bytes> + Send + 'static) -> (u64, u64) {
    let database = database().await;
    let broker = Program::serve(&database, &[]).await;
    let grpc = broker.address();
    let grpc = format!("http://{grpc}");
    assert_serves(&grpc).await;
    let channel = channel(&grpc).await;
    let before = broker.program.resident();
    let (messages, count) = counted(messages);
    let stream = raw::stream(&channel, WORK, messages).await.expect("a stream");
    until_still("the end of the flood", || count.load(Ordering::Relaxed)).await;
    let grown = broker.program.resident().saturating_sub(before);
    assert_serves(&grpc).await;
    drop(stream);
    (count.load(Ordering::Relaxed), grown)
}

#[tokio::test]
async fn a_worker_that_settles_and_never_reads_the_answers_is_not_read_for_ever() {
    // Half of the outcomes are empty. The broker refuses empty outcomes without Postgres, so they are answered first.
    let settle = |n: u64| {
        let outcomes = (0..5_000).map(|i| forged((n * 5_000 + i) as i64, &Bytes::new()));
        let unset = |outcome| if n.is_multiple_of(2) { Outcome { outcome: None, ..outcome } } else { outcome };
        message(work_request::Message::Settle(Settle { outcomes: outcomes.map(unset).collect() }))
    };
    let messages = tokio_stream::iter([subscribe("t")]).chain(tokio_stream::iter((0..2_000).map(settle)));
    let (sent, grown) = send_and_never_read(messages).await;
    // The broker stops reading after 20,000 unanswered outcomes. By then, more than a MiB of messages may already be on
    // its way.
    assert!(sent < 100, "{sent} messages of 5,000 outcomes were taken");
    assert!(grown < 64 * MIB, "the broker grew by {} MiB", grown / MIB);
}

#[tokio::test]
async fn a_worker_that_pings_and_never_reads_the_answers_costs_no_memory() {
    let pings = std::iter::repeat_n(message(work_request::Message::Ping(Ping {})), sized(400_000, 2_000_000));
    let messages = tokio_stream::iter([subscribe("t")]).chain(tokio_stream::iter(pings));
    let (sent, grown) = send_and_never_read(messages).await;
    assert!(grown < 64 * MIB, "after {sent} pings the broker had grown by {} MiB", grown / MIB);
}

#[tokio::test]
async fn a_worker_that_settles_one_job_thousands_of_times_hardly_delays_others() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", "")]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let job = worker.next().await;
    let forged = howdah_proto::v1::LeasedJob { token: job.token ^ 1, ..job.clone() };
    let mut hostile = Worker::subscribe(&broker.grpc, Subscribe::default()).await;
    let client = database.connect().await;
    let now = "SELECT extract(epoch FROM clock_timestamp())::float8";
    let times = sized(4_000, 20_000);
    // Settling one lease repeatedly must take about as long as settling as many different leases. A busy machine may slow down
    // one of the two, but hardly the same one in five rounds.
    for round in 1..=5 {
        let mut took = Vec::new();
        for distinct in [1, 0] {
            let begun: f64 = client.query_one(now, &[]).await.expect(now).get(0);
            for n in 0..times {
                let forged = howdah_proto::v1::LeasedJob { id: forged.id + distinct * n, ..forged.clone() };
                hostile.settle(vec![ack(&forged)]).await;
            }
            for _ in 0..times {
                assert_eq!(hostile.settled().await.status(), SettleStatus::LeaseLost);
            }
            let ended: f64 = client.query_one(now, &[]).await.expect(now).get(0);
            took.push(ended - begun);
        }
        if took[1] < 4.0 * took[0] + 1.0 {
            break;
        }
        assert!(round < 5, "{took:?} s");
    }
    worker.ack(&job).await;
}

/// Sends `calls_each` requests on each of eight connections while a lock keeps the broker from storing jobs, then removes the
/// lock. Returns the growth of the broker's memory and the number of stored requests. The other requests get a temporary error.
pub(super) async fn flood_while_blocked(request: &EnqueueJobsRequest, calls_each: usize) -> (u64, usize) {
    let database = database().await;
    // The broker must wait for the lock during the whole flood.
    let broker = Program::serve(&database, &["--set", "database_timeout=240s"]).await;
    let grpc = format!("http://{}", broker.address());
    assert_serves(&grpc).await;
    let held = hold(&database, "howdah.ready").await;
    let before = broker.program.resident();
    let request = Bytes::from(request.encode_to_vec());
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let channel = channel(&grpc).await;
        for _ in 0..calls_each {
            let (channel, request) = (channel.clone(), request.clone());
            calls.spawn(async move { raw::call(&channel, CALLS[0], request).await });
        }
    }
    let grown = AtomicU64::new(0);
    until_still("the end of the flood", || {
        grown.fetch_max(broker.program.resident().saturating_sub(before), Ordering::Relaxed);
        grown.load(Ordering::Relaxed) / MIB
    })
    .await;
    held.batch_execute("COMMIT").await.expect("commit");
    let mut stored = 0;
    while let Some(answer) = with_timeout("an answer", calls.join_next()).await {
        match answer.expect("no panic") {
            Ok(_) => stored += 1,
            // DEADLINE_EXCEEDED means that the request arrived too slowly, because other requests waited for memory.
            Err(status) => {
                assert!(matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded), "{status:?}");
            }
        }
    }
    assert_serves(&grpc).await;
    (grown.into_inner(), stored)
}
