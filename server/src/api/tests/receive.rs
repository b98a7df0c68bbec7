//! Tests of the memory budget for messages.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use howdah_core::job::Limits;
use hyper::body::{Body as HttpBody, Frame};
use prost::Message as _;
use tokio::{task::JoinSet, time::timeout};
use tonic::{
    Code, Status,
    body::Body,
    codec::CompressionEncoding,
    codegen::{Service as _, http},
    transport::Channel,
};

use super::fixture::{Running, TIMEOUT, Times, named, serve_with};
use crate::api::receive::ReceiveTimeouts;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn long_timeouts() -> ReceiveTimeouts {
    Times::default().message
}

/// Starts a server with this much memory for messages.
async fn serve(received_bytes: usize, timeouts: ReceiveTimeouts) -> Running {
    let times = Times { message: timeouts, ..Times::default() };
    serve_with(Limits { received_bytes, ..Limits::default() }, times).await
}

/// Returns a request of this size that waits at the gate.
fn waiting(bytes: usize) -> howdah_proto::v1::ListTaskTypesRequest {
    named(format!("wait{}", "x".repeat(bytes)))
}

type Calls = JoinSet<Result<(), Status>>;

/// Starts this many calls on one connection.
fn begin(calls: &mut Calls, channel: &Channel, count: usize, bytes: usize) {
    for _ in 0..count {
        let mut client = howdah_proto::v1::task_type_service_client::TaskTypeServiceClient::new(channel.clone());
        calls.spawn(async move { client.list_task_types(waiting(bytes)).await.map(drop) });
    }
}

async fn next(calls: &mut Calls) -> Result<(), Status> {
    timeout(TIMEOUT, calls.join_next()).await.expect("an answer").expect("a call").expect("no panic")
}

#[tokio::test]
async fn messages_that_do_not_fit_together_are_worked_on_one_after_the_other() {
    let running = serve(MIB, long_timeouts()).await;
    let mut calls = Calls::new();
    begin(&mut calls, &running.channel().await, 2, 600 * KIB);
    begin(&mut calls, &running.channel().await, 3, 600 * KIB);
    for _ in 0..5 {
        running.gate.entered().await;
        running.gate.open(1);
        next(&mut calls).await.unwrap();
    }
    assert_eq!(running.gate.most_inside(), 1);
}

#[tokio::test]
async fn a_message_larger_than_the_budget_passes_alone() {
    let running = serve(64 * KIB, long_timeouts()).await;
    let mut calls = Calls::new();
    begin(&mut calls, &running.channel().await, 2, 900 * KIB);
    running.gate.open(2);
    for _ in 0..2 {
        next(&mut calls).await.unwrap();
    }
    assert_eq!(running.gate.most_inside(), 1);
}

#[tokio::test]
async fn small_messages_do_not_wait_for_large_ones() {
    let running = serve(MIB, long_timeouts()).await;
    let mut calls = Calls::new();
    let channel = running.channel().await;
    begin(&mut calls, &channel, 3, 900 * KIB);
    running.gate.entered().await;
    begin(&mut calls, &channel, 100, 6 * KIB);
    for _ in 0..100 {
        running.gate.entered().await;
    }
    running.gate.open(103);
    for _ in 0..103 {
        next(&mut calls).await.unwrap();
    }
}

#[tokio::test]
async fn a_gzipped_message_takes_room_for_what_it_may_become() {
    let running = serve(MIB, long_timeouts()).await;
    let mut calls = Calls::new();
    for _ in 0..4 {
        let mut client = running.client().await.send_compressed(CompressionEncoding::Gzip);
        calls.spawn(async move { client.list_task_types(waiting(600 * KIB)).await.map(drop) });
    }
    for _ in 0..4 {
        running.gate.entered().await;
        running.gate.open(1);
        next(&mut calls).await.unwrap();
    }
    assert_eq!(running.gate.most_inside(), 1);
}

#[tokio::test]
async fn a_call_that_waits_too_long_for_memory_fails_with_the_name_of_the_limit() {
    let running = serve(MIB, ReceiveTimeouts { room: Duration::from_millis(50), ..long_timeouts() }).await;
    let mut calls = Calls::new();
    begin(&mut calls, &running.channel().await, 1, 900 * KIB);
    running.gate.entered().await;
    begin(&mut calls, &running.channel().await, 1, 900 * KIB);
    let status = next(&mut calls).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().starts_with("the 1 MiB for received messages (limits.received_bytes) are in use"),
        "{status}"
    );
    running.gate.open(1);
    next(&mut calls).await.unwrap();
}

#[tokio::test]
async fn a_call_is_refused_when_too_many_calls_wait_for_memory() {
    let running = serve(MIB, long_timeouts()).await;
    let mut calls = Calls::new();
    begin(&mut calls, &running.channel().await, 1, 900 * KIB);
    running.gate.entered().await;
    // The flow-control window of a stream is a quarter of the budget. So messages of four other calls may wait unread, and the
    // fifth is rejected.
    for _ in 0..5 {
        begin(&mut calls, &running.channel().await, 1, 900 * KIB);
    }
    assert_eq!(next(&mut calls).await.unwrap_err().code(), Code::Unavailable);
    running.gate.open(5);
    for _ in 0..5 {
        next(&mut calls).await.unwrap();
    }
}

#[tokio::test]
async fn waiting_calls_use_at_most_half_of_the_flow_control_window_of_their_connection() {
    let running = serve(16 * MIB, long_timeouts()).await;
    let mut calls = Calls::new();
    let channel = running.channel().await;
    begin(&mut calls, &channel, 4, 1000 * KIB);
    for _ in 0..4 {
        running.gate.entered().await;
    }
    // 32 waiting messages with 256 KiB unread bytes each are half of a connection's window; the 33rd is rejected.
    begin(&mut calls, &channel, 33, 1000 * KIB);
    let status = next(&mut calls).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("of this connection wait already"), "{status}");
    assert_eq!(running.gate.most_inside(), 4);
    begin(&mut calls, &running.channel().await, 1, 1000 * KIB);
    running.gate.entered().await;
    running.gate.open(38);
    for _ in 0..37 {
        next(&mut calls).await.unwrap();
    }
}

#[tokio::test]
async fn a_message_that_is_announced_and_does_not_come_holds_no_memory() {
    let running = serve(MIB, long_timeouts()).await;
    let mut announced = JoinSet::new();
    for _ in 0..40 {
        let channel = running.channel().await;
        // Announces a message of maximum size, and sends no bytes of it.
        announced.spawn(stuck(channel, vec![Bytes::from_static(&[0, 0, 0x10, 0, 0])]));
    }
    // All 40 announced messages must be accepted before the next calls start.
    running.accepted(40).await;
    let mut calls = Calls::new();
    begin(&mut calls, &running.channel().await, 3, 900 * KIB);
    running.gate.open(3);
    for _ in 0..3 {
        next(&mut calls).await.unwrap();
    }
}

#[tokio::test]
async fn messages_that_arrive_together_and_exceed_the_memory_do_not_deadlock() {
    let running = serve(MIB, long_timeouts()).await;
    running.gate.open(4);
    let mut calls = Calls::new();
    // Together the four messages need four times the memory.
    for _ in 0..4 {
        begin(&mut calls, &running.channel().await, 1, 1000 * KIB);
    }
    for _ in 0..4 {
        next(&mut calls).await.unwrap();
    }
}

#[tokio::test]
async fn a_slow_sender_is_refused_while_other_calls_wait_and_the_waiting_calls_go_on() {
    let running = serve(MIB, long_timeouts()).await;
    let begun = framed(&waiting(900 * KIB).encode_to_vec()).slice(..800 * KIB);
    let slow = stuck(running.channel().await, vec![begun]);
    let channel = running.channel().await;
    let waits = async {
        running.taken(700 * KIB).await;
        let mut calls = Calls::new();
        begin(&mut calls, &channel, 1, 900 * KIB);
        begin(&mut calls, &running.channel().await, 1, 900 * KIB);
        running.gate.open(2);
        next(&mut calls).await?;
        next(&mut calls).await
    };
    let (status, answer) = tokio::join!(slow, waits);
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("/s while others waited"), "{status}");
    answer.unwrap();
}

#[tokio::test]
async fn small_messages_of_many_entries_wait_for_what_they_become() {
    let running = serve(MIB, long_timeouts()).await;
    // 4,000 empty fields are 8 KB as a message. Decoded, two such messages exceed the memory budget, so the five calls below
    // are decoded one after the other.
    let entries = framed(&[&waiting(0).encode_to_vec()[..], &[0x7a, 0].repeat(4_000)].concat());
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        calls.spawn(send(running.channel().await, Chunks { chunks: [entries.clone()].into(), ends: true }));
    }
    for _ in 0..5 {
        running.gate.entered().await;
        running.gate.open(1);
        calls.join_next().await;
    }
    assert_eq!(running.gate.most_inside(), 1);
    running.freed().await;
}

#[tokio::test]
async fn a_request_that_does_not_end_after_its_message_loses_its_memory() {
    let quick = Duration::from_millis(50);
    let running = serve(MIB, ReceiveTimeouts { end: quick, ..long_timeouts() }).await;
    for message in [named("x".repeat(600 * KIB)).encode_to_vec(), [0x7a, 0].repeat(4_000)] {
        let status = stuck(running.channel().await, vec![framed(&message)]).await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    }
    running.freed().await;
}

/// A request body with these chunks. After the chunks it ends (`ends`) or stalls.
struct Chunks {
    chunks: VecDeque<Bytes>,
    ends: bool,
}

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.chunks.pop_front() {
            Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// Returns a message with its gRPC prefix.
fn framed(message: &[u8]) -> Bytes {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat().into()
}

/// Sends a request with these chunks, which then stalls without an end. Returns the status of the response.
async fn stuck(channel: Channel, chunks: Vec<Bytes>) -> Status {
    let status = send(channel, Chunks { chunks: chunks.into(), ends: false }).await;
    status.expect("an error in the headers")
}

/// Sends a request. Returns the gRPC status if the response headers contain it.
async fn send(mut channel: Channel, body: Chunks) -> Option<Status> {
    let request = http::Request::post("/howdah.v1.TaskTypeService/ListTaskTypes")
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(Body::new(body))
        .unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let response = timeout(TIMEOUT, channel.call(request)).await.expect("an answer").unwrap();
    Status::from_header_map(response.headers())
}

#[tokio::test]
async fn a_sender_that_stops_within_a_message_loses_its_memory_to_waiting_calls() {
    // The other call must also arrive within this time limit. It is below two seconds, after which the slow call would be
    // rejected for its rate instead.
    let quick = Duration::from_millis(1_500);
    let running = serve(MIB, ReceiveTimeouts { message: quick, mib: quick, ..long_timeouts() }).await;
    let begun = framed(&waiting(900 * KIB).encode_to_vec()).slice(..500 * KIB);
    let slow = stuck(running.channel().await, vec![begun]);
    let channel = running.channel().await;
    let waits = async {
        let mut calls = Calls::new();
        begin(&mut calls, &channel, 1, 900 * KIB);
        running.gate.open(1);
        next(&mut calls).await
    };
    let (status, answer) = tokio::join!(slow, waits);
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("must arrive within"), "{status}");
    answer.unwrap();
}

#[tokio::test]
async fn a_unary_call_with_two_messages_is_refused() {
    let running = serve(MIB, long_timeouts()).await;
    let message = framed(&named("x".repeat(600 * KIB)).encode_to_vec());
    let status = stuck(running.channel().await, vec![message.clone(), message]).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
}

#[tokio::test]
async fn a_call_that_is_given_up_gives_its_room_back() {
    let running = serve(MIB, long_timeouts()).await;
    let mut given_up = Calls::new();
    begin(&mut given_up, &running.channel().await, 2, 900 * KIB);
    running.gate.entered().await;
    given_up.abort_all();
    let mut calls = Calls::new();
    begin(&mut calls, &running.channel().await, 1, 900 * KIB);
    running.gate.entered().await;
    running.gate.open(1);
    next(&mut calls).await.unwrap();
}
