//! Passes HTTP/2 on to a broker, and writes down each message: what a client really sends.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use hyper::{
    Request, Response, Uri,
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

use crate::{bend::Bends, dynamic, inventory::Inventory, log::Log};

/// HTTP/2's windows: no transfer should wait for them.
const WINDOW: u32 = 16 << 20;
/// A client that does not answer is given up, as by a broker, which takes longer.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// Bytes in front of each message of gRPC.
const PREFIX: usize = 5;

/// What the taps of one scenario share.
#[derive(Clone)]
pub(crate) struct Tap {
    pub(crate) broker: String,
    pub(crate) log: Log,
    pub(crate) bends: Bends,
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) streams: Arc<AtomicU64>,
}

impl Tap {
    /// Serves one connection of a client until either side has closed it.
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
        // The broker has closed. The client still gets what came before.
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
        watch.note("open", headers(&parts.headers));
        if let Ok(uri) = format!("http://{upstream}/{}", watch.path).parse::<Uri>() {
            parts.uri = uri;
        }
        let back = Watch { to_client: true, ..watch.clone() };
        let sent = to.send_request(Request::from_parts(parts, Tapped::new(body, watch))).await;
        let response = sent.inspect_err(|error| back.note("broken", json!(error.to_string())))?;
        let (parts, body) = response.into_parts();
        if parts.headers.contains_key("grpc-status") {
            back.note("closed", headers(&parts.headers));
        }
        Ok(Response::from_parts(parts, Tapped::new(body, back)))
    }
}

/// One direction of one call.
#[derive(Clone)]
struct Watch {
    tap: Tap,
    stream: u64,
    method: Option<MethodDescriptor>,
    path: String,
    to_client: bool,
}

impl Watch {
    #[allow(clippy::needless_pass_by_value, reason = "most are made for this")]
    fn note(&self, what: &str, value: Value) {
        let method = self.path.rsplit('/').next().unwrap_or_default();
        let to = if self.to_client { "client" } else { "broker" };
        self.tap.log.push(json!({
            "broker": self.tap.broker, "stream": self.stream, "method": method, "to": to, what: value,
        }));
    }

    /// Writes a message down; returns what to send in its place.
    fn message(&self, bytes: Bytes) -> Vec<Bytes> {
        let Some(method) = &self.method else { return vec![bytes] };
        let of = if self.to_client { method.output() } else { method.input() };
        let Some(message) = dynamic::decode(of, bytes.clone()) else { return vec![bytes] };
        self.tap.inventory.saw(method, &message);
        if !self.to_client {
            self.note("message", dynamic::to_json(&message));
            return vec![bytes];
        }
        let bent = self.tap.bends.bend(method.name(), bytes, message);
        bent.into_iter().map(|(bytes, message)| self.passed(bytes, message.as_ref())).collect()
    }

    fn passed(&self, bytes: Option<Bytes>, message: Option<&DynamicMessage>) -> Bytes {
        if let Some(message) = message {
            self.note("message", dynamic::to_json(message));
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

/// A body whose messages are written down as they pass.
struct Tapped {
    body: Incoming,
    watch: Watch,
    gathered: BytesMut,
}

impl Tapped {
    fn new(body: Incoming, watch: Watch) -> Self {
        Self { body, watch, gathered: BytesMut::new() }
    }

    /// The whole messages that have gathered.
    fn messages(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        while self.gathered.len() >= PREFIX {
            let length = u32::from_be_bytes([self.gathered[1], self.gathered[2], self.gathered[3], self.gathered[4]]);
            let whole = PREFIX + length as usize;
            if self.gathered.len() < whole {
                break;
            }
            let mut framed = self.gathered.split_to(whole).freeze();
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
    type Error = hyper::Error;

    /// A refused call is headers alone, and has to stay so.
    fn is_end_stream(&self) -> bool {
        self.gathered.is_empty() && self.body.is_end_stream()
    }

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.watch.note("broken", json!(error.to_string()));
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    if !self.watch.to_client {
                        self.watch.note("closed", json!({}));
                    }
                    return Poll::Ready(None);
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    self.gathered.extend_from_slice(&data);
                    let whole = self.messages();
                    if !whole.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(whole))));
                    }
                }
                Err(frame) => {
                    if let Some(trailers) = frame.trailers_ref() {
                        self.watch.note("closed", headers(trailers));
                    }
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
        }
    }
}
