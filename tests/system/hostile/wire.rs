//! Tests bytes that are not messages, oversized messages, and unknown calls.

use howdah_proto::v1::{
    EnqueueJobsRequest, SettleStatus, StreamEnqueueRequest, Subscribe, WorkRequest, WorkResponse, work_request,
    work_response, worker_service_client::WorkerServiceClient,
};
use prost::Message as _;
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming, codegen::Bytes};

use super::{
    assert_nothing_stored, assert_serves, channel, enqueue,
    raw::{self, CALLS, STREAM_ENQUEUE, WORK},
    refused,
};
use crate::support::{TestBroker, ack, database, new_job, with_timeout};

#[tokio::test]
async fn random_bytes_are_answered_by_every_method_and_store_nothing() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let channel = channel(&broker.grpc).await;
    let mut random = StdRng::seed_from_u64(7);
    for round in 0..40 {
        let mut bytes = vec![0; random.random_range(1..2_000)];
        random.fill_bytes(&mut bytes);
        // Half of the messages begin like a valid message, with the tag of field 1 and a length, and continue with
        // junk.
        if round % 2 == 0 {
            bytes.splice(0..0, [0x0a, bytes.len().min(127) as u8]);
        }
        for path in CALLS {
            // The error code depends on where the decoder fails. The broker must neither panic nor hang.
            if let Err(status) = raw::call(&channel, path, bytes.clone()).await {
                let expected = [Code::Internal, Code::InvalidArgument, Code::NotFound];
                assert!(expected.contains(&status.code()), "{path}: {status:?}");
                assert!(!status.message().contains("failed unexpectedly"), "{path}: a panic: {status:?}");
            }
        }
        for path in [WORK, STREAM_ENQUEUE] {
            let messages = tokio_stream::iter([Bytes::from(bytes.clone()), Bytes::from(bytes.clone())]);
            if let Err(status) = raw::stream_end(&channel, path, messages).await {
                let expected = [Code::Internal, Code::InvalidArgument, Code::FailedPrecondition];
                assert!(expected.contains(&status.code()), "{path}: {status:?}");
            }
        }
    }
    assert_nothing_stored(&database).await;
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn a_message_cut_off_or_altered_anywhere_stores_nothing_of_it() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let channel = channel(&broker.grpc).await;
    let headers = [("name".to_owned(), "value".to_owned())].into();
    let job = howdah_proto::v1::NewJob { headers, key: "key".into(), ..new_job("good", "payload") };
    let whole = EnqueueJobsRequest { jobs: vec![job], request_key: String::new() }.encode_to_vec();
    for length in 0..whole.len() {
        let status = refused(raw::call(&channel, CALLS[0], whole[..length].to_vec())).await;
        assert!([Code::Internal, Code::InvalidArgument].contains(&status.code()), "{length}: {status:?}");
        let messages = tokio_stream::iter([Bytes::from(whole[..length].to_vec())]);
        // An empty message is a valid request of a pipeline and gets an answer. An invalid message ends the stream.
        let ended = raw::stream_end(&channel, STREAM_ENQUEUE, messages).await;
        assert_eq!(ended.is_ok(), length == 0, "{length}: {ended:?}");
    }
    assert_nothing_stored(&database).await;
    raw::call(&channel, CALLS[0], whole).await.expect("the complete message is valid");
}

#[tokio::test]
async fn bodies_that_are_not_framed_as_grpc_has_it_are_refused() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let channel = channel(&broker.grpc).await;
    let grpc = ("content-type", "application/grpc");
    let body = |flag: u8, length: u32, rest: &str| {
        let mut body = vec![flag];
        body.extend(length.to_be_bytes());
        String::from_utf8([&body, rest.as_bytes()].concat()).expect("ASCII")
    };
    let gzip = ("grpc-encoding", "gzip");
    let cases = [
        // Cases: an invalid compression flag; a compressed message without an encoding header; an encoding header
        // without compression.
        (vec![grpc], body(7, 4, "junk"), Code::Internal),
        (vec![grpc], body(1, 4, "junk"), Code::Internal),
        (vec![grpc, gzip], body(1, 4, "junk"), Code::Internal),
        // Cases: a message shorter than its length prefix, an incomplete prefix, no message, and a length of 2 GB.
        (vec![grpc], body(0, 100, "short"), Code::Internal),
        (vec![grpc], "\0\0\0".into(), Code::Internal),
        (vec![grpc], String::new(), Code::Internal),
        (vec![grpc], body(0, 0x7f7f_7f7f, ""), Code::OutOfRange),
        // Unsupported encodings.
        (vec![grpc, ("grpc-encoding", "deflate")], body(1, 4, "junk"), Code::Unimplemented),
        (vec![grpc, ("grpc-encoding", "../../gzip")], body(1, 4, "junk"), Code::Unimplemented),
    ];
    for (headers, body, code) in cases {
        for path in &CALLS[..10] {
            let status = raw::post(&channel, path, &headers, body.clone()).await;
            assert_eq!(status.code(), code, "{path} {headers:?} {body:?}: {status:?}");
        }
    }
    assert_nothing_stored(&database).await;
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn calls_that_do_not_exist_are_unimplemented() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let channel = channel(&broker.grpc).await;
    let grpc = ("content-type", "application/grpc");
    let empty = || "\0\0\0\0\0".to_owned();
    for path in [
        "/howdah.v1.JobService/DropTables",
        "/howdah.v2.JobService/EnqueueJobs",
        "/howdah.v1.jobservice/enqueuejobs",
        "/howdah.v1.JobService/EnqueueJobs/",
        "/howdah.v1.JobService/../WorkerService/Work",
        "//howdah.v1.JobService/GetJob",
        "/",
        "/healthz",
        "/%00/%2e%2e",
    ] {
        let status = raw::post(&channel, path, &[grpc], empty()).await;
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
    }
    // The broker refuses other content types before it reads the body.
    for content_type in ["application/json", "text/html", "application/grpc-web", ""] {
        let status = raw::post(&channel, CALLS[0], &[("content-type", content_type)], empty()).await;
        assert_ne!(status.code(), Code::Ok, "{content_type}");
    }
    // The broker must survive a malformed `grpc-timeout`, whatever it answers.
    for deadline in ["", "0n", "1", "-1S", "99999999999S", "S", "9999999H", "é"] {
        raw::post(&channel, CALLS[4], &[grpc, ("grpc-timeout", deadline)], empty()).await;
    }
    assert_serves(&broker.grpc).await;
}

/// Returns the next message on the stream, skipping pings.
async fn next(stream: &mut Streaming<WorkResponse>) -> Option<work_response::Message> {
    with_timeout("a message", async {
        loop {
            match stream.message().await.expect("an open stream").and_then(|m| m.message) {
                Some(work_response::Message::Ping(_)) => {}
                other => return other,
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_message_over_the_limit_ends_its_own_stream_and_no_other_of_the_connection() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let channel = channel(&broker.grpc).await;
    // Opens a work stream and a pipeline on the same connection.
    let (work, requests) = tokio::sync::mpsc::channel(16);
    let subscribe = Subscribe { task_type: "t".into(), window: 10, ..Default::default() };
    work.send(WorkRequest { message: Some(work_request::Message::Subscribe(subscribe)) }).await.unwrap();
    let mut worker = WorkerServiceClient::new(channel.clone());
    let stream = with_timeout("a stream", worker.work(ReceiverStream::new(requests))).await.expect("a stream");
    let mut stream = stream.into_inner();
    with_timeout("a welcome", stream.message()).await.expect("a welcome");
    let (pipeline, requests) = tokio::sync::mpsc::channel(16);
    let mut answers = raw::stream(&channel, STREAM_ENQUEUE, ReceiverStream::new(requests)).await.expect("a stream");
    // Sends the first request of the pipeline at once, because the broker ends streams without a first message.
    let request = |sequence, task_type| {
        let request = StreamEnqueueRequest { sequence, jobs: vec![new_job(task_type, "")], ..Default::default() };
        Bytes::from(request.encode_to_vec())
    };
    pipeline.send(request(1, "other")).await.expect("an open pipeline");
    with_timeout("an answer", answers.message()).await.expect("an open pipeline").expect("an answer");

    let large = Bytes::from(vec![0; (16 << 20) + 1]);
    for path in CALLS {
        let status = refused(raw::call(&channel, path, large.clone())).await;
        assert_eq!(status.code(), Code::OutOfRange, "{path}: {status:?}");
    }
    for path in [WORK, STREAM_ENQUEUE] {
        let end = raw::stream_end(&channel, path, tokio_stream::iter([large.clone()])).await;
        assert_eq!(refused(std::future::ready(end)).await.code(), Code::OutOfRange, "{path}");
    }

    pipeline.send(request(2, "t")).await.expect("an open pipeline");
    with_timeout("an answer", answers.message()).await.expect("an open pipeline").expect("an answer");
    let message = next(&mut stream).await;
    let Some(work_response::Message::Jobs(jobs)) = message else { panic!("{message:?}") };
    let settle = howdah_proto::v1::Settle { outcomes: vec![ack(&jobs.jobs[0])] };
    work.send(WorkRequest { message: Some(work_request::Message::Settle(settle)) }).await.expect("an open stream");
    let message = next(&mut stream).await;
    let Some(work_response::Message::Settled(settled)) = message else { panic!("{message:?}") };
    assert_eq!(settled.results[0].status(), SettleStatus::Ok);
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_and_one_at_the_limit_arrives() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut jobs = crate::support::jobs_client(&broker.grpc).await;
    let over =
        EnqueueJobsRequest { jobs: vec![new_job("t", ""), new_job("t", vec![7; (1 << 20) + 1])], ..Default::default() };
    super::assert_names(&refused(jobs.enqueue_jobs(over)).await, "jobs[1].payload");
    assert_nothing_stored(&database).await;
    enqueue(&broker.grpc, vec![new_job("t", vec![7; 1 << 20]); 15]).await;
    let mut worker = crate::support::Worker::connect(&broker.grpc, "t", 15).await;
    for _ in 0..15 {
        let job = worker.next().await;
        assert_eq!(job.payload.len(), 1 << 20);
        worker.settle(vec![ack(&job)]).await;
    }
}
