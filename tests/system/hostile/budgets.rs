//! Tests requests that take much memory for few bytes: empty jobs, unread responses, announced messages that never arrive.
//! Tests that measure memory run the broker as a separate process.

use std::sync::atomic::{AtomicU64, Ordering};

use howdah_proto::v1::{EnqueueJobsRequest, JobState, ListJobsRequest};
use prost::Message as _;

use super::{
    assert_serves, enqueue,
    floods::{MIB, flood_while_blocked},
    raw::{CALLS, Frame, Http2, data, frame, headers},
};
use crate::support::{Program, TestBroker, database, new_job, until_still, with_timeout};

#[tokio::test]
async fn empty_jobs_that_wait_for_postgres_are_bounded_by_what_they_take_in_memory() {
    // Makes 320 calls with 10,000 jobs each. All calls together take 16 MB on the wire, and 1.9 GB as jobs in memory.
    let request = EnqueueJobsRequest { jobs: vec![new_job("t", ""); 10_000], ..Default::default() };
    let (grown, stored) = flood_while_blocked(&request, 40).await;
    assert!(grown < 320 * MIB, "the broker grew by {} MiB", grown / MIB);
    assert!(stored >= 4, "{stored} requests were stored");
}

#[tokio::test]
async fn unread_pages_are_bounded_and_other_callers_still_get_pages() {
    let database = database().await;
    let broker = Program::serve(&database, &[]).await;
    let grpc = format!("http://{}", broker.address());
    enqueue(&grpc, vec![new_job("large", vec![7; 1 << 20]); 4]).await;
    let before = broker.program.resident();
    let list =
        ListJobsRequest { task_type: "large".into(), include_payload: true, page_size: 10, ..Default::default() };
    let list = list.encode_to_vec();
    // Requests 400 pages of 3 MiB each on a connection whose client reads nothing.
    let mut http = Http2::connect_closed(&grpc).await;
    for n in 0..400 {
        let stream = 2 * n + 1;
        let end = frame(Frame::DATA, Frame::END_STREAM, stream, &[]);
        let call = [headers(stream, CALLS[2]), data(stream, &list), end].concat();
        http.write(&call).await.expect("room to write");
    }
    let grown = AtomicU64::new(0);
    until_still("the end of the flood", || {
        grown.fetch_max(broker.program.resident().saturating_sub(before), Ordering::Relaxed);
        grown.load(Ordering::Relaxed) / MIB
    })
    .await;
    let grown = grown.into_inner();
    assert!(grown < 128 * MIB, "the broker grew by {} MiB", grown / MIB);
    // The connection that reads nothing may use only a quarter of the memory for responses, so a list on another
    // connection succeeds.
    let mut other = crate::support::jobs_client(&grpc).await;
    let list = ListJobsRequest::decode(&list[..]).expect("the list");
    let page = with_timeout("a page", other.list_jobs(list)).await.expect("a page").into_inner();
    assert!(page.jobs.iter().all(|job| job.state() == JobState::Ready && job.payload.len() == 1 << 20));
    assert!(!page.jobs.is_empty());
    assert_serves(&grpc).await;
}

#[tokio::test]
async fn announced_messages_that_never_come_keep_no_caller_waiting() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut connections = Vec::new();
    for _ in 0..8 {
        let mut http = Http2::connect(&broker.grpc).await;
        for n in 0..50 {
            // Sends the length prefix of a message of 4 MiB without the message.
            let announced = frame(Frame::DATA, 0, 2 * n + 1, &[0, 0, 0x40, 0, 0]);
            http.write(&[headers(2 * n + 1, CALLS[0]), announced].concat()).await.expect("room to write");
        }
        connections.push(http);
    }
    for _ in 0..4 {
        enqueue(&broker.grpc, vec![new_job("large", vec![7; 1 << 20]); 8]).await;
    }
}
