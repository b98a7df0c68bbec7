//! Tests peers on the gRPC port that use another protocol, or violate HTTP/2.

use std::time::Duration;

use howdah_proto::v1::{
    Subscribe, WorkRequest, WorkResponse, work_request, worker_service_client::WorkerServiceClient,
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use super::{
    assert_serves, channel,
    raw::{self, Frame, Http2, PREFACE},
};
use crate::support::{TestBroker, Worker, ack, database, new_job, with_timeout};

/// Sends these bytes to the gRPC port and waits until the broker has closed the connection.
async fn until_closed(grpc: &str, bytes: Vec<u8>) {
    let stream = TcpStream::connect(grpc.trim_start_matches("http://")).await.expect("connect");
    let (mut read, mut write) = stream.into_split();
    // The broker may close the connection before all bytes are written.
    let writing = tokio::spawn(async move {
        let _ = write.write_all(&bytes).await;
        write
    });
    let mut answer = Vec::new();
    // A reset also closes the connection.
    let _ = with_timeout("the end of the connection", read.read_to_end(&mut answer)).await;
    drop(with_timeout("the end of the writing", writing).await);
}

#[tokio::test]
async fn http_1_tls_random_bytes_and_silence_are_closed_and_the_broker_still_serves() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let mut random = StdRng::seed_from_u64(11);
    let mut noise = || {
        let mut bytes = vec![0; 100_000];
        random.fill_bytes(&mut bytes);
        bytes
    };
    let mut peers = vec![
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"POST /howdah.v1.JobService/EnqueueJobs HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0".to_vec(),
        [b"GET / HTTP/1.1\r\n".to_vec(), b"X: y\r\n".repeat(100_000)].concat(),
        [&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[7; 600]].concat(),
        b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        Vec::new(),
        PREFACE[..10].to_vec(),
        // A valid preface, followed by junk, by a frame of 16 MiB, or by DATA of a stream that was never opened.
        [PREFACE, &noise()].concat(),
        [PREFACE, &raw::frame(4, 0, 0, &[]), &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
        [PREFACE, &raw::frame(4, 0, 0, &[]), &raw::data(9, b"junk")].concat(),
        // Invalid settings, a window that overflows, and a ping of the wrong size.
        [PREFACE, &raw::frame(4, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])].concat(),
        [PREFACE, &raw::frame(4, 0, 0, &[]), &raw::frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff])].concat(),
        [PREFACE, &raw::frame(4, 0, 0, &[]), &raw::frame(6, 0, 0, &[1; 9])].concat(),
    ];
    peers.extend((0..20).map(|_| noise()));
    let mut closed = tokio::task::JoinSet::new();
    for bytes in peers {
        let grpc = broker.grpc.clone();
        closed.spawn(async move { until_closed(&grpc, bytes).await });
    }
    while let Some(ended) = closed.join_next().await {
        ended.expect("closed in time");
    }
    super::enqueue(&broker.grpc, vec![new_job("t", "")]).await;
    let job = worker.next().await;
    worker.settle(vec![ack(&job)]).await;
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn too_large_headers_are_refused_and_the_next_call_is_served() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let channel = channel(&broker.grpc).await;
    let large = "x".repeat(20_000);
    for headers in
        [vec![("x-large", large.as_str())], vec![("authorization", large.as_str()), ("x-more", large.as_str())]]
    {
        let headers: Vec<_> = [("content-type", "application/grpc")].into_iter().chain(headers).collect();
        let status = raw::post(&channel, raw::CALLS[4], &headers, "\0\0\0\0\0".into()).await;
        assert_ne!(status.code(), tonic::Code::Ok, "{status:?}");
    }
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn streams_beyond_the_limit_of_a_connection_are_refused_and_the_others_stay() {
    const LIMIT: u32 = 8;
    let database = database().await;
    let change = |c: &mut howdah_core::config::Config| {
        c.limits.streams_per_connection = LIMIT;
        // The timeout for the first message is so long that no accepted stream ends during the test.
        c.limits.first_message = Duration::from_secs(600);
    };
    let broker = TestBroker::on_with(&database, change).await;
    let mut http = Http2::connect(&broker.grpc).await;
    // The broker's SETTINGS frame announces the limit of streams. The test ignores the limit and opens more streams.
    with_timeout("settings", http.next()).await.expect("settings");
    let open: Vec<u8> = (0..50).flat_map(|n| raw::headers(2 * n + 1, raw::WORK)).collect();
    http.write(&open).await.expect("write");
    let mut refused = Vec::new();
    while refused.len() < 50 - LIMIT as usize {
        let next = with_timeout("a frame", http.next()).await.expect("an open connection");
        assert_ne!(next.kind, Frame::GOAWAY, "{next:?}");
        if next.kind == Frame::RST_STREAM {
            // Error code 7 is REFUSED_STREAM: the broker has not processed the request, so a client may send it again.
            assert_eq!(next.reason(), 7);
            refused.push(next.stream);
        }
    }
    assert_eq!(refused, (LIMIT..50).map(|n| 2 * n + 1).collect::<Vec<_>>());
    assert_serves(&broker.grpc).await;
}

async fn open_on(channel: &Channel) -> Result<(mpsc::Sender<WorkRequest>, Streaming<WorkResponse>), Status> {
    let (send, requests) = mpsc::channel(4);
    let subscribe = work_request::Message::Subscribe(Subscribe { task_type: "t".into(), ..Default::default() });
    send.send(WorkRequest { message: Some(subscribe) }).await.expect("room");
    let stream = WorkerServiceClient::new(channel.clone()).work(ReceiverStream::new(requests)).await?;
    let mut stream = stream.into_inner();
    stream.message().await?;
    Ok((send, stream))
}

#[tokio::test]
async fn a_client_that_minds_the_limit_waits_for_a_stream_to_end() {
    const LIMIT: u32 = 8;
    let database = database().await;
    let broker = TestBroker::on_with(&database, |c| c.limits.streams_per_connection = LIMIT).await;
    let channel = channel(&broker.grpc).await;
    let mut streams = Vec::new();
    for _ in 0..LIMIT {
        streams.push(with_timeout("a stream", open_on(&channel)).await.expect("a stream"));
    }
    let waiting = tokio::spawn({
        let channel = channel.clone();
        async move { open_on(&channel).await }
    });
    // Other connections may open more streams.
    assert_serves(&broker.grpc).await;
    assert!(!waiting.is_finished(), "a stream above the limit was opened");
    streams.pop();
    with_timeout("a stream in the place of the closed one", waiting).await.expect("no panic").expect("a stream");
}

#[tokio::test]
async fn thousands_of_streams_opened_and_reset_at_once_end_at_most_their_own_connection() {
    let database = database().await;
    let broker = TestBroker::on_with(&database, |c| c.limits.first_message = Duration::from_secs(60)).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 1).await;
    let mut http = Http2::connect(&broker.grpc).await;
    // Opens a stream with HEADERS and cancels it at once with RST_STREAM.
    let open_and_reset =
        |n: u32| [raw::headers(2 * n + 1, raw::WORK), raw::frame(3, 0, 2 * n + 1, &[0, 0, 0, 8])].concat();
    let flood: Vec<u8> = (0..20_000).flat_map(open_and_reset).collect();
    let _ = http.write(&flood).await;
    let _ = http.write(&raw::frame(6, 0, 0, &[1; 8])).await;
    // The broker may close the connection. Otherwise it processes all frames, and then answers the ping.
    while let Some(next) = with_timeout("a frame", http.next()).await {
        if next.kind == Frame::GOAWAY || next.kind == 6 {
            break;
        }
    }
    drop(http);
    super::enqueue(&broker.grpc, vec![new_job("t", "")]).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_serves(&broker.grpc).await;
}
