//! More than anybody asked for, from clients who do not wait and do not read. The broker is a process of
//! its own where its memory is told.

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
use crate::support::{Program, TestBroker, Worker, ack, database, new_job, soon, until_still};

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn message(message: work_request::Message) -> Bytes {
    WorkRequest { message: Some(message) }.encode_to_vec().into()
}

pub(super) fn subscribe(task_type: &str) -> Bytes {
    message(work_request::Message::Subscribe(Subscribe { task_type: task_type.into(), ..Default::default() }))
}

/// An ack of a lease that nobody has.
pub(super) fn forged(id: i64, result: &Bytes) -> Outcome {
    Outcome { id, token: 1, outcome: Some(outcome::Outcome::Ack(Ack { result: result.clone(), ..Ack::default() })) }
}

/// Counts what is taken out of it: what the transport has asked for.
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

/// Sends all of these on a stream of work and never reads an answer, until they are gone or nobody takes
/// more of them; how many were taken, and by how much the broker has grown. It must be well afterwards.
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
    // Half of them are answered without Postgres: nothing is set.
    let settle = |n: u64| {
        let outcomes = (0..5_000).map(|i| forged((n * 5_000 + i) as i64, &Bytes::new()));
        let unset = |outcome| if n.is_multiple_of(2) { Outcome { outcome: None, ..outcome } } else { outcome };
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
async fn a_worker_that_settles_one_job_twenty_thousand_times_holds_nobody_up_for_long() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", "")]).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let job = worker.next().await;
    let forged = howdah_proto::v1::LeasedJob { token: job.token ^ 1, ..job.clone() };
    let mut hostile = Worker::subscribe(&broker.grpc, Subscribe::default()).await;
    let client = database.connect().await;
    let now = "SELECT extract(epoch FROM clock_timestamp())::float8";
    // The same lease again and again, or as many different ones: it must not matter much. A busy machine may
    // make either slow, but not the same one five times.
    for round in 1..=5 {
        let mut took = Vec::new();
        for distinct in [1, 0] {
            let begun: f64 = client.query_one(now, &[]).await.expect(now).get(0);
            for n in 0..20_000 {
                let forged = howdah_proto::v1::LeasedJob { id: forged.id + distinct * n, ..forged.clone() };
                hostile.settle(vec![ack(&forged)]).await;
            }
            for _ in 0..20_000 {
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

/// Sends a request to a broker that cannot store it, from eight connections, so many times from each; then lets it be
/// stored. Returns by how many bytes the broker grew, and how many requests were stored. The others are refused for now, and
/// the broker still serves.
pub(super) async fn flood_while_blocked(request: &EnqueueJobsRequest, calls_each: usize) -> (u64, usize) {
    let database = database().await;
    // Until the flood is over it gives up nothing that waits for the lock.
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
    while let Some(answer) = soon("an answer", calls.join_next()).await {
        match answer.expect("no panic") {
            Ok(_) => stored += 1,
            // Late: one that has come too slowly while others wait for room.
            Err(status) => {
                assert!(matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded), "{status:?}");
            }
        }
    }
    assert_serves(&grpc).await;
    (grown.into_inner(), stored)
}
