//! Misbehaving clients on real connections, and server shutdown.

use std::{io::ErrorKind, time::Duration};

use howdah_core::job::Limits;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tonic::{Code, codec::CompressionEncoding, codegen::tokio_stream::StreamExt as _};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::{v1, v1alpha};

use super::fixture::{MESSAGE_BYTES, Running, TIMEOUT, Times, named, serve, serve_with};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Reads until the other side closes the connection.
async fn closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        Err(_) => panic!("the connection is still open"),
    }
    bytes
}

async fn works(running: &Running) {
    let answer = running.client().await.list_task_types(named("four")).await.unwrap();
    assert_eq!(answer.into_inner().task_types[0].name, "4");
}

/// Starts a server with this time limit for the HTTP/2 preface.
async fn with_preface(preface: Duration) -> Running {
    serve_with(Limits::default(), Times { preface, ..Times::default() }).await
}

/// Opens a connection and sends nothing until the server closes it, which happens at the time limit of the preface.
async fn outlast_a_preface(running: &Running) {
    closed(&mut TcpStream::connect(running.address).await.unwrap()).await;
}

#[tokio::test]
async fn peers_that_never_speak_or_stop_in_the_preface_are_closed() {
    let running = with_preface(Duration::from_millis(200)).await;
    for begun in [&b""[..], &PREFACE[..1], &PREFACE[..23]] {
        let mut peer = TcpStream::connect(running.address).await.unwrap();
        peer.write_all(begun).await.unwrap();
        closed(&mut peer).await;
    }
    works(&running).await;
}

#[tokio::test]
async fn a_peer_that_says_the_preface_too_slowly_is_closed() {
    let running = with_preface(Duration::from_millis(200)).await;
    let clock = with_preface(Duration::from_millis(20)).await;
    let mut slow = TcpStream::connect(running.address).await.unwrap();
    for byte in PREFACE {
        let _ = slow.write_all(&[*byte]).await;
        outlast_a_preface(&clock).await;
    }
    closed(&mut slow).await;
    works(&running).await;
}

#[tokio::test]
async fn a_peer_that_spoke_in_time_may_be_idle() {
    let running = with_preface(Duration::from_millis(200)).await;
    let mut client = running.client().await;
    client.list_task_types(named("a")).await.unwrap();
    outlast_a_preface(&running).await;
    client.list_task_types(named("a")).await.unwrap();
    assert_eq!(running.counts.accepted.get(), 2, "on the same connection");
}

#[tokio::test]
async fn http_1_tls_and_junk_are_closed_before_the_time_for_a_preface_has_passed() {
    let running = serve(Limits::default()).await;
    let http1 = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    let tls = [&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[7; 600]].concat();
    let junk = vec![0xff; 4096];
    // `huge` and `flood` begin with a valid preface. Then `huge` announces a frame of 16 MiB, and `flood` sends CONTINUATION
    // frames without end.
    let huge = [PREFACE, SETTINGS, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let mut flood = [PREFACE, SETTINGS, &[0, 0, 0, 1, 0, 0, 0, 0, 1]].concat();
    for _ in 0..200_000 {
        flood.extend([0, 0, 1, 9, 0, 0, 0, 0, 1, 0x82]);
    }
    for (name, bytes) in [("http1", http1), ("tls", tls), ("junk", junk), ("huge", huge), ("flood", flood)] {
        let mut peer = TcpStream::connect(running.address).await.unwrap();
        // The server may close the connection before all bytes are written.
        let _ = peer.write_all(&bytes).await;
        assert!(!closed(&mut peer).await.starts_with(b"HTTP/1"), "{name}");
    }
    works(&running).await;
}

#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    let running = serve(Limits::default()).await;
    let mut peer = TcpStream::connect(running.address).await.unwrap();
    let mut bytes = [PREFACE, SETTINGS].concat();
    for stream in (1..40_001_u32).step_by(2) {
        // The shortest possible request (POST, https, /), and a reset of its stream.
        bytes.extend([0, 0, 3, 1, 4]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend([0x83, 0x87, 0x84]);
        bytes.extend([0, 0, 4, 3, 0]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend([0, 0, 0, 8]);
    }
    let _ = peer.write_all(&bytes).await;
    let answer = closed(&mut peer).await;
    // Reads a GOAWAY frame with ENHANCE_YOUR_CALM, unless the connection is reset before the frame can be read.
    let goaway = answer.windows(4).any(|bytes| bytes == [0, 0, 0, 11]);
    assert!(goaway || answer.is_empty(), "{} bytes", answer.len());
    works(&running).await;
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_and_places_are_free_again() {
    let running = serve(Limits { connections: 2, ..Limits::default() }).await;
    let mut first = running.client().await;
    let second = running.client().await;
    let mut third = TcpStream::connect(running.address).await.unwrap();
    assert!(closed(&mut third).await.is_empty());
    assert_eq!((running.counts.accepted.get(), running.counts.refused.get()), (2, 1));
    first.list_task_types(named("a")).await.unwrap();
    drop(second);
    let free = async {
        let mut peer;
        loop {
            peer = TcpStream::connect(running.address).await.unwrap();
            peer.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
            if matches!(peer.read(&mut [0; 64]).await, Ok(bytes) if bytes > 0) {
                break;
            }
        }
    };
    timeout(TIMEOUT, free).await.expect("a slot is free");
}

#[tokio::test]
async fn requests_that_a_browser_sends_for_a_web_page_are_refused() {
    let running = serve(Limits::default()).await;
    for header in ["origin", "sec-fetch-site"] {
        let mut request = tonic::Request::new(named("four"));
        request.metadata_mut().insert(header, "https://example.com".parse().unwrap());
        let status = running.client().await.list_task_types(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(header), "{status}");
    }
    // Browsers send `no-cors` requests with one of three content types, or with none.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json", ""] {
        assert_eq!(status_of(&running, kind).await, 415, "{kind}");
    }
    for kind in ["application/grpc", "application/grpc+proto"] {
        assert_eq!(status_of(&running, kind).await, 200, "{kind}");
    }
    works(&running).await;
}

/// Returns the HTTP status of a request with this content type.
async fn status_of(running: &Running, kind: &str) -> u16 {
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let uri = format!("http://{}/howdah.v1.TaskTypeService/ListTaskTypes", running.address);
    let mut request = axum::http::Request::post(uri);
    if !kind.is_empty() {
        request = request.header("content-type", kind);
    }
    let (answer, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
    body.send_data(bytes::Bytes::from_static(&[0; 5]), true).unwrap();
    timeout(TIMEOUT, answer).await.unwrap().unwrap().status().as_u16()
}

#[tokio::test]
async fn a_message_over_the_limit_is_out_of_range() {
    let running = serve(Limits::default()).await;
    let status = running.client().await.list_task_types(named("x".repeat(MESSAGE_BYTES))).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    works(&running).await;
}

#[tokio::test]
async fn gzip_is_taken_but_a_bomb_is_not_unpacked() {
    let running = serve(Limits::default()).await;
    let mut client = running.client().await.send_compressed(CompressionEncoding::Gzip);
    let answer = client.list_task_types(named("x".repeat(MESSAGE_BYTES / 2))).await.unwrap();
    assert_eq!(answer.into_inner().task_types[0].name, (MESSAGE_BYTES / 2).to_string());
    let status = client.list_task_types(named("x".repeat(64 * MESSAGE_BYTES))).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    works(&running).await;
}

#[tokio::test]
async fn a_panic_ends_its_call_and_nothing_else() {
    let running = serve(Limits::default()).await;
    let mut client = running.client().await;
    let status = client.list_task_types(named("panic")).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(!status.message().contains("as asked"), "{status}");
    client.list_task_types(named("a")).await.unwrap();
    assert_eq!(running.counts.accepted.get(), 1, "on the same connection");
}

#[tokio::test]
async fn a_call_that_hangs_is_ended() {
    let call = Duration::from_millis(100);
    let running = serve_with(Limits::default(), Times { call, ..Times::default() }).await;
    let status = running.client().await.list_task_types(named("hang")).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}

#[tokio::test]
async fn an_unknown_service_is_unimplemented() {
    let running = serve(Limits::default()).await;
    let channel = running.channel().await;
    let mut client = howdah_proto::v1::job_service_client::JobServiceClient::new(channel);
    let status = client.get_job(howdah_proto::v1::GetJobRequest { id: 1 }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

/// Asks both versions of the reflection service for the file that defines this symbol.
async fn described(running: &Running, symbol: &str) -> [Vec<Vec<u8>>; 2] {
    use v1::{server_reflection_request::MessageRequest, server_reflection_response::MessageResponse};
    use v1alpha::{
        server_reflection_request::MessageRequest as AlphaRequest,
        server_reflection_response::MessageResponse as AlphaResponse,
    };
    let request = v1::ServerReflectionRequest {
        message_request: Some(MessageRequest::FileContainingSymbol(symbol.into())),
        ..Default::default()
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(running.channel().await);
    let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().next().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::FileDescriptorResponse(file)) = answer else { panic!("{symbol}: {answer:?}") };

    let request = v1alpha::ServerReflectionRequest {
        message_request: Some(AlphaRequest::FileContainingSymbol(symbol.into())),
        ..Default::default()
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(running.channel().await);
    let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().next().await.unwrap().unwrap().message_response;
    let Some(AlphaResponse::FileDescriptorResponse(alpha)) = answer else { panic!("{symbol}: {answer:?}") };
    [file.file_descriptor_proto, alpha.file_descriptor_proto]
}

#[tokio::test]
async fn reflection_knows_our_services_and_health_in_both_versions() {
    let running = serve(Limits::default()).await;
    let ours =
        ["grpc.health.v1.Health", "howdah.v1.JobService", "howdah.v1.TaskTypeService", "howdah.v1.WorkerService"];
    let request = v1::ServerReflectionRequest {
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(running.channel().await);
    let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().next().await.unwrap().unwrap().message_response;
    let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) = answer else {
        panic!("{answer:?}")
    };
    assert!(ours.iter().all(|name| list.service.iter().any(|service| service.name == *name)), "{list:?}");
    for name in ours {
        assert!(described(&running, name).await.iter().all(|files| !files.is_empty()), "{name}");
    }
}

#[tokio::test]
async fn reflection_knows_what_the_details_of_our_errors_are_made_of() {
    let running = serve(Limits::default()).await;
    for name in ["google.rpc.Status", "google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.protobuf.Any"] {
        assert!(described(&running, name).await.iter().all(|files| !files.is_empty()), "{name}");
    }
}

#[tokio::test]
async fn health_reports_not_serving_before_the_connection_ends_and_watches_do_not_delay_the_stop() {
    let running = serve(Limits::default()).await;
    let mut client = HealthClient::new(running.channel().await);
    let request = || HealthCheckRequest { service: "howdah.v1.WorkerService".into() };
    assert_eq!(client.check(request()).await.unwrap().into_inner().status(), ServingStatus::Serving);
    let mut watch = client.watch(request()).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::Serving);

    // The server must stop long before its shutdown deadline, although a `Watch` stream is open.
    running.stop().await;
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn the_broker_may_say_not_serving_by_itself() {
    let running = serve(Limits::default()).await;
    let mut client = HealthClient::new(running.channel().await);
    running.health.not_serving().await;
    let answer = client.check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(answer.into_inner().status(), ServingStatus::NotServing);
}

#[tokio::test]
async fn stopping_is_held_up_neither_by_silent_peers_nor_by_calls_that_hang() {
    let drain = Duration::from_millis(100);
    let running = serve_with(Limits::default(), Times { drain, ..Times::default() }).await;
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    let mut polite = TcpStream::connect(running.address).await.unwrap();
    polite.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
    let mut client = running.client().await;
    let hanging = tokio::spawn(async move { client.list_task_types(named("hang")).await });
    running.gate.entered().await;
    running.stop().await;
    closed(&mut silent).await;
    closed(&mut polite).await;
    assert!(hanging.await.unwrap().is_err());
}

#[tokio::test]
async fn the_port_is_closed_as_soon_as_the_server_has_stopped() {
    let running = serve(Limits::default()).await;
    let address = running.address;
    running.stop().await;
    assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
