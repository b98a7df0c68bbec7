//! Forwards HTTP/2 requests to a broker, and logs each message in both directions.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Body, Frame, Incoming},
    client::conn::http2::SendRequest,
    header::HeaderMap,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MethodDescriptor};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::{dynamic, inventory::Inventory, log::Log, rewrite::Rewrites};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Size of the HTTP/2 flow-control windows in bytes, so large that the tap never slows down a transfer.
const WINDOW: u32 = 16 << 20;
/// Interval of HTTP/2 pings to clients. The tap disconnects a client that does not answer, sooner than a broker would.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// Size of the prefix of each gRPC message, in bytes.
const PREFIX: usize = 5;

/// Forwards and logs the messages on connections of one broker address.
#[derive(Clone)]
pub(crate) struct Tap {
    pub(crate) broker: String,
    pub(crate) log: Log,
    pub(crate) rewrites: Rewrites,
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) streams: Arc<AtomicU64>,
}

impl Tap {
    /// Forwards one client connection until either side has closed it.
    pub(crate) async fn serve(self, client: tokio::io::DuplexStream, upstream: SocketAddr) -> io::Result<()> {
        let socket = TcpStream::connect(upstream).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(socket))
            .await
            .map_err(io::Error::other)?;
        let service = service_fn(move |request| self.clone().forward(request, sender.clone(), upstream));
        let mut served = std::pin::pin!(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(2 * KEEPALIVE)
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .serve_connection(TokioIo::new(client), service)
        );
        tokio::select! {
            _ = served.as_mut() => return Ok(()),
            _ = connection => {}
        }
        // The broker has closed the connection. Forward the messages that it sent before, then close the client's connection.
        served.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(Duration::from_secs(1), served).await;
        Ok(())
    }

    async fn forward(
        self,
        request: Request<Incoming>,
        mut to: SendRequest<Tapped>,
        upstream: SocketAddr,
    ) -> hyper::Result<Response<Tapped>> {
        let (mut parts, body) = request.into_parts();
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let path = parts.uri.path().trim_start_matches('/').to_owned();
        let watch = Watch { tap: self, stream, method: dynamic::method(&path), path, to_client: false };
        watch.log("open", headers(&parts.headers));
        if let Ok(uri) = format!("http://{upstream}/{}", watch.path).parse::<Uri>() {
            parts.uri = uri;
        }
        let back = Watch { to_client: true, ..watch.clone() };
        let tapped = Tapped::new(Some(body), watch);
        let is_too_large = tapped.is_too_large.clone();
        let sent = to.send_request(Request::from_parts(parts, tapped)).await;
        if sent.is_err() && is_too_large.load(Ordering::Relaxed) {
            back.log("closed", json!({ "status": "413" }));
            let mut refused = Response::new(Tapped::new(None, back));
            *refused.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            return Ok(refused);
        }
        let response = sent.inspect_err(|error| back.log("broken", json!(error.to_string())))?;
        let (parts, body) = response.into_parts();
        if parts.headers.contains_key("grpc-status") {
            back.log("closed", headers(&parts.headers));
        }
        Ok(Response::from_parts(parts, Tapped::new(Some(body), back)))
    }
}

/// One direction of one gRPC call.
#[derive(Clone)]
struct Watch {
    tap: Tap,
    stream: u64,
    method: Option<MethodDescriptor>,
    path: String,
    to_client: bool,
}

impl Watch {
    #[allow(clippy::needless_pass_by_value, reason = "most values are made for this call")]
    fn log(&self, kind: &str, value: Value) {
        let method = self.path.rsplit('/').next().unwrap_or_default();
        let to = if self.to_client { "client" } else { "broker" };
        self.tap.log.push(json!({
            "broker": self.tap.broker, "stream": self.stream, "method": method, "to": to, kind: value,
        }));
    }

    /// Logs a message, and returns the messages to send in its place. Only messages to the client are rewritten.
    fn message(&self, bytes: Bytes) -> Vec<Bytes> {
        let Some(method) = &self.method else { return vec![bytes] };
        let of = if self.to_client { method.output() } else { method.input() };
        let Some(message) = dynamic::decode(of, bytes.clone()) else { return vec![bytes] };
        self.tap.inventory.record(method, &message);
        if !self.to_client {
            self.log("message", dynamic::to_json(&message));
            return vec![bytes];
        }
        let rewritten = self.tap.rewrites.rewrite(method.name(), bytes, message);
        rewritten.into_iter().map(|(bytes, message)| self.passed(bytes, message.as_ref())).collect()
    }

    fn passed(&self, bytes: Option<Bytes>, message: Option<&DynamicMessage>) -> Bytes {
        if let Some(message) = message {
            self.log("message", dynamic::to_json(message));
        }
        bytes.or_else(|| message.map(|message| message.encode_to_vec().into())).unwrap_or_default()
    }
}

fn headers(map: &HeaderMap) -> Value {
    let one = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes())))
    };
    Value::Object(map.iter().map(one).collect())
}

/// A request or response body whose messages are logged as they pass.
struct Tapped {
    /// Body of the request or response; `None` if empty.
    body: Option<Incoming>,
    watch: Watch,
    buffer: BytesMut,
    /// Number of bytes received of this body.
    bytes: usize,
    /// Whether the request was cut off because of its size.
    is_too_large: Arc<AtomicBool>,
}

impl Tapped {
    fn new(body: Option<Incoming>, watch: Watch) -> Self {
        Self { body, watch, buffer: BytesMut::new(), bytes: 0, is_too_large: Arc::default() }
    }

    /// Counts the bytes of a request, and fails above the limit of the rewrite `small_requests`.
    fn count(&mut self, bytes: usize) -> Result<(), BoxError> {
        self.bytes += bytes;
        if self.watch.to_client || !self.watch.tap.rewrites.is_too_large(self.bytes) {
            return Ok(());
        }
        self.is_too_large.store(true, Ordering::Relaxed);
        self.watch.log("broken", json!("the request is too large"));
        Err("the request is too large".into())
    }

    /// Removes the complete messages from the buffer, logs and rewrites them, and returns the bytes to send.
    fn messages(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        while self.buffer.len() >= PREFIX {
            let length = u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]]);
            let whole = PREFIX + length as usize;
            if self.buffer.len() < whole {
                break;
            }
            let mut framed = self.buffer.split_to(whole).freeze();
            let flag = framed[0];
            let bytes = framed.split_off(PREFIX);
            let passed = if flag == 0 { self.watch.message(bytes) } else { vec![bytes] };
            for message in passed {
                out.put_u8(flag);
                out.put_u32(message.len() as u32);
                out.put(message);
            }
        }
        out.freeze()
    }
}

impl Body for Tapped {
    type Data = Bytes;
    type Error = BoxError;

    /// Returns true for a response without a body, such as a refused call. Otherwise hyper would add an empty body.
    fn is_end_stream(&self) -> bool {
        self.buffer.is_empty() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            let frame = match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.watch.log("broken", json!(error.to_string()));
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    if !self.watch.to_client {
                        self.watch.log("closed", json!({}));
                    }
                    return Poll::Ready(None);
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    if let Err(error) = self.count(data.len()) {
                        return Poll::Ready(Some(Err(error)));
                    }
                    self.buffer.extend_from_slice(&data);
                    let whole = self.messages();
                    if !whole.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(whole))));
                    }
                }
                Err(frame) => {
                    if let Some(trailers) = frame.trailers_ref() {
                        self.watch.log("closed", headers(trailers));
                    }
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
        }
    }
}
