//! Clients that send arbitrary bytes as a gRPC message, arbitrary text as a body, and arbitrary frames on an HTTP/2
//! connection.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tonic::{
    Request, Status, Streaming,
    body::Body,
    client::Grpc,
    codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{
        Bytes, Service as _,
        http::{self, uri::PathAndQuery},
        tokio_stream::Stream,
    },
    transport::Channel,
};

use crate::support::with_timeout;

/// Paths of gRPC methods with a unary request.
pub(crate) const CALLS: [&str; 11] = [
    "/howdah.v1.JobService/EnqueueJobs",
    "/howdah.v1.JobService/GetJob",
    "/howdah.v1.JobService/ListJobs",
    "/howdah.v1.JobService/CancelJobs",
    "/howdah.v1.TaskTypeService/ListTaskTypes",
    "/howdah.v1.TaskTypeService/UpdateTaskType",
    "/howdah.v1.SettingsService/UpdateSettings",
    "/howdah.v1.WorkerService/PullJobs",
    "/howdah.v1.WorkerService/SettleJobs",
    "/howdah.v1.WorkerService/ExtendJobs",
    "/grpc.health.v1.Health/Check",
];

/// Path of a gRPC method with a request stream.
pub(super) const WORK: &str = "/howdah.v1.WorkerService/Work";
pub(super) const STREAM_ENQUEUE: &str = "/howdah.v1.JobService/StreamEnqueue";

/// A gRPC codec that passes message bytes through unchanged.
#[derive(Clone, Copy, Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        use bytes::BufMut as _;
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        use bytes::Buf as _;
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Calls a gRPC method with these bytes as the message.
pub(super) async fn call(channel: &Channel, path: &'static str, message: impl Into<Bytes>) -> Result<Bytes, Status> {
    unary(Grpc::new(channel.clone()), path, message.into()).await
}

/// Calls a gRPC method with these bytes as the message, compressed with gzip.
pub(super) async fn call_gzipped(channel: &Channel, path: &'static str, message: Bytes) -> Result<Bytes, Status> {
    unary(Grpc::new(channel.clone()).send_compressed(CompressionEncoding::Gzip), path, message).await
}

async fn unary(mut grpc: Grpc<Channel>, path: &'static str, message: Bytes) -> Result<Bytes, Status> {
    with_timeout("a connection", grpc.ready()).await.expect("a connection");
    let call = grpc.unary(Request::new(message), PathAndQuery::from_static(path), RawCodec);
    Ok(with_timeout(path, call).await?.into_inner())
}

/// Opens a gRPC stream with these bytes as messages.
pub(super) async fn stream(
    channel: &Channel,
    path: &'static str,
    messages: impl Stream<Item = Bytes> + Send + 'static,
) -> Result<Streaming<Bytes>, Status> {
    let mut grpc = Grpc::new(channel.clone());
    with_timeout("a connection", grpc.ready()).await.expect("a connection");
    let call = grpc.streaming(Request::new(messages), PathAndQuery::from_static(path), RawCodec);
    Ok(with_timeout(path, call).await?.into_inner())
}

/// Opens a gRPC stream that yields no valid message, and returns how it ends.
pub(super) async fn stream_end(
    channel: &Channel,
    path: &'static str,
    messages: impl Stream<Item = Bytes> + Send + 'static,
) -> Result<(), Status> {
    let mut answers = stream(channel, path, messages).await?;
    while with_timeout(path, answers.message()).await?.is_some() {}
    Ok(())
}

/// Posts a body without gRPC framing, with additional headers. Returns the gRPC status.
pub(super) async fn post(channel: &Channel, path: &str, headers: &[(&str, &str)], body: String) -> Status {
    let mut request = http::Request::post(path).header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::new(body)).expect("a request");
    let mut channel = channel.clone();
    with_timeout("a connection", std::future::poll_fn(|cx| channel.poll_ready(cx))).await.expect("a connection");
    match with_timeout(path, channel.call(request)).await {
        Ok(response) => Status::from_header_map(response.headers())
            .unwrap_or_else(|| Status::unknown(format!("{} without a grpc-status in the headers", response.status()))),
        Err(error) => Status::unavailable(error.to_string()),
    }
}

/// An HTTP/2 frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    const WINDOW_UPDATE: u8 = 8;
    pub(crate) const END_STREAM: u8 = 1;
    const ACK: u8 = 1;
    const END_HEADERS: u8 = 4;

    fn number(&self, at: usize) -> u32 {
        self.payload.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Whether this HTTP/2 frame ends its stream.
    pub(super) fn ends_stream(&self) -> bool {
        let ends = matches!(self.kind, Self::DATA | Self::HEADERS) && self.flags & Self::END_STREAM != 0;
        ends || self.kind == Self::RST_STREAM
    }

    /// Error code of an HTTP/2 frame `RST_STREAM` or `GOAWAY`.
    pub(super) fn reason(&self) -> u32 {
        self.number(if self.kind == Self::GOAWAY { 4 } else { 0 })
    }
}

/// Encodes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns the HTTP/2 HEADERS frame of a gRPC call.
pub(crate) fn headers(stream: u32, path: &str) -> Vec<u8> {
    headers_as(stream, path, None)
}

/// Returns the HTTP/2 HEADERS frame of a gRPC call with a bearer token.
pub(crate) fn headers_as(stream: u32, path: &str, token: Option<&str>) -> Vec<u8> {
    // The header block has two indexed fields (POST, http), then literals: :path, :authority, content-type, te,
    // authorization.
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &[u8], value: &str| {
        block.extend(name);
        assert!(value.len() < 0x7f, "a length of more than a byte");
        block.push(value.len() as u8);
        block.extend(value.bytes());
    };
    literal(&[0x04], path);
    literal(&[0x01], "broker");
    literal(&[0x0f, 0x10], "application/grpc");
    literal(b"\x00\x02te", "trailers");
    if let Some(token) = token {
        literal(&[0x0f, 0x08], &format!("Bearer {token}"));
    }
    frame(Frame::HEADERS, Frame::END_HEADERS, stream, &block)
}

/// Returns a gRPC message in a separate HTTP/2 DATA frame.
pub(crate) fn data(stream: u32, message: &[u8]) -> Vec<u8> {
    let mut payload = vec![0];
    payload.extend((message.len() as u32).to_be_bytes());
    payload.extend(message);
    frame(Frame::DATA, 0, stream, &payload)
}

/// An HTTP/2 connection whose frames the test writes itself. The test sends DATA frames to stream 1.
pub(crate) struct Http2 {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
    buffer: Vec<u8>,
    connection_window: i64,
    stream_window: i64,
}

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl Http2 {
    /// Connects with a stream window of 0 bytes, so that the broker can send no DATA.
    pub(super) async fn connect_closed(grpc: &str) -> Self {
        Self::connect_with_window(grpc, 0).await
    }

    /// Connects with the largest windows, so that flow control does not limit the broker.
    pub(super) async fn connect(grpc: &str) -> Self {
        Self::connect_with_window(grpc, 0x7fff_ffff).await
    }

    /// Connects with this initial HTTP/2 stream window, in bytes, for data from the broker.
    pub(crate) async fn connect_with_window(grpc: &str, bytes: u32) -> Self {
        let stream = TcpStream::connect(grpc.trim_start_matches("http://")).await.expect("connect");
        let (read, write) = stream.into_split();
        let mut http = Self { read, write, buffer: Vec::new(), connection_window: 65_535, stream_window: 65_535 };
        // Sets INITIAL_WINDOW_SIZE, and raises the window of the connection to its maximum.
        let settings = frame(Frame::SETTINGS, 0, 0, &[&[0, 4][..], &bytes.to_be_bytes()].concat());
        let window = frame(Frame::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]);
        http.write(&[PREFACE, &settings, &window].concat()).await.expect("a good beginning");
        http
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        with_timeout("room to write", self.write.write_all(bytes)).await
    }

    /// Reads the next frame and acknowledges it where HTTP/2 requires it; `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let next = with_timeout("a frame", self.read_frame()).await?;
        match next.kind {
            Frame::SETTINGS if next.flags & Frame::ACK == 0 => {
                for setting in next.payload.chunks_exact(6).filter(|s| s[..2] == [0, 4]) {
                    let window = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                    self.stream_window += i64::from(window) - 65_535;
                }
                let _ = self.write(&frame(Frame::SETTINGS, Frame::ACK, 0, &[])).await;
            }
            Frame::PING if next.flags & Frame::ACK == 0 => {
                let _ = self.write(&frame(Frame::PING, Frame::ACK, 0, &next.payload)).await;
            }
            Frame::WINDOW_UPDATE if next.stream == 0 => self.connection_window += i64::from(next.number(0)),
            Frame::WINDOW_UPDATE => self.stream_window += i64::from(next.number(0)),
            _ => {}
        }
        Some(next)
    }

    // Reads one frame. The function is cancel-safe, because bytes that it has read stay in the buffer.
    async fn read_frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.parse() {
                return Some(frame);
            }
            if self.read.read_buf(&mut self.buffer).await.is_ok_and(|bytes| bytes > 0) {
                continue;
            }
            return None;
        }
    }

    fn parse(&mut self) -> Option<Frame> {
        let head = self.buffer.get(..9)?;
        let end = 9 + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let (kind, flags) = (head[3], head[4]);
        let payload = self.buffer.get(9..end)?.to_vec();
        self.buffer.drain(..end);
        Some(Frame { kind, flags, stream, payload })
    }

    /// Number of bytes that the test may now send on stream 1 under HTTP/2 flow control.
    pub(super) fn room(&self) -> i64 {
        self.connection_window.min(self.stream_window)
    }

    /// Writes DATA frames with a payload of `bytes` bytes to stream 1. The payload must fit into the stream's window.
    pub(super) async fn write_data(&mut self, frames: &[u8], bytes: usize) -> std::io::Result<()> {
        self.connection_window -= bytes as i64;
        self.stream_window -= bytes as i64;
        self.write(frames).await
    }
}
