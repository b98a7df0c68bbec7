//! Answers gRPC clients that connect to the HTTP port by mistake. Without an answer, they would retry until their timeout.

use std::convert::Infallible;

use axum::body::Body;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tonic::Status;

use super::HEADERS_WITHIN;

/// First bytes of an HTTP/2 connection, with which every gRPC client begins. No HTTP/1 method starts with them.
const PREFACE: &[u8] = b"PRI ";

const WRONG_PORT: &str = "this is the HTTP port of the broker; its gRPC port follows `grpc=` in the line `ready` of its output, and is 7432 by default";

/// Whether the client speaks HTTP/2. Waits for the first bytes, and consumes none.
pub(super) async fn is_http2(stream: &TcpStream) -> bool {
    let mut first = [0; PREFACE.len()];
    let peeked = tokio::time::timeout(HEADERS_WITHIN, stream.peek(&mut first)).await;
    matches!(peeked, Ok(Ok(_))) && first == PREFACE
}

/// Answers every call with an error that names the mistake. Ends with the connection.
pub(super) async fn refuse(stream: TcpStream) {
    let service = service_fn(|_: hyper::Request<Incoming>| async {
        Ok::<_, Infallible>(Status::failed_precondition(WRONG_PORT).into_http::<Body>())
    });
    let connection = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
    // Connection errors that the peer causes need no handling.
    let _ = tokio::time::timeout(HEADERS_WITHIN, connection).await;
}
