//! Tests more concurrent large messages than the broker has memory for. Tests that measure memory run the broker as a separate
//! process.

use futures::StreamExt as _;
use howdah_proto::v1::{EnqueueJobsRequest, Settle, StreamEnqueueRequest, work_request};
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::codegen::Bytes;

use super::{
    channel, enqueue,
    floods::{MIB, flood_while_blocked, forged, message, subscribe},
    raw::{self, STREAM_ENQUEUE, WORK},
};
use crate::support::{TestBroker, database, new_job, with_timeout};

#[tokio::test]
async fn large_enqueues_that_wait_for_postgres_are_bounded_in_bytes() {
    // 8 clients make 24 concurrent calls of 15 MiB. The memory for received messages has room for 4 of these calls.
    let request = EnqueueJobsRequest { jobs: vec![new_job("t", vec![7; 1 << 20]); 15], ..Default::default() };
    let (grown, stored) = flood_while_blocked(&request, 3).await;
    // Without the limit of received messages the broker would grow by more than 360 MiB, because it copies the data for
    // Postgres.
    assert!(grown < 224 * MIB, "the broker grew by {} MiB", grown / MIB);
    assert!(stored >= 4, "{stored} requests were stored");
}

/// Starts a broker with 1 MiB of memory for received messages.
async fn small_broker() -> (TestBroker, crate::support::TestDatabase) {
    let database = database().await;
    let broker = TestBroker::on_with(&database, |config| config.limits.received_bytes = MIB as usize).await;
    (broker, database)
}

#[tokio::test]
async fn a_stream_that_has_sent_a_large_message_and_is_idle_holds_no_room() {
    let (broker, _database) = small_broker().await;
    let result = Bytes::from(vec![7; 1 << 20]);
    let mut streams = Vec::new();
    for id in 1..4 {
        let settle = message(work_request::Message::Settle(Settle { outcomes: vec![forged(id, &result)] }));
        let messages = futures::stream::iter([subscribe("t"), settle]).chain(futures::stream::pending());
        let mut stream = raw::stream(&channel(&broker.grpc).await, WORK, messages).await.expect("a stream");
        for _ in ["welcome", "settled"] {
            with_timeout("a message", stream.message()).await.expect("an open stream").expect("a message");
        }
        streams.push(stream);
    }
    enqueue(&broker.grpc, vec![new_job("u", vec![7; 1 << 20])]).await;
}

#[tokio::test]
async fn pipelines_of_large_requests_take_turns_and_all_are_answered() {
    let (broker, database) = small_broker().await;
    let mut pipelines = JoinSet::new();
    for _ in 0..3 {
        let channel = channel(&broker.grpc).await;
        let requests = (0..10).map(|sequence| {
            let jobs = vec![new_job("t", vec![7; 1 << 20])];
            Bytes::from(StreamEnqueueRequest { sequence, jobs, ..Default::default() }.encode_to_vec())
        });
        pipelines
            .spawn(async move { raw::stream_end(&channel, STREAM_ENQUEUE, futures::stream::iter(requests)).await });
    }
    while let Some(end) = with_timeout("the end of a pipeline", pipelines.join_next()).await {
        end.expect("no panic").expect("a good end");
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 30);
}
