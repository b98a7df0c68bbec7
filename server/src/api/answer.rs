//! Response bodies that reserve memory until the client has read them. A response that the client does not read in time is
//! ended.
//!
//! hyper does not poll a body while the client's flow-control window is closed, so the body cannot end the response itself.
//! Instead, a separate task watches the body and drops its data if the client does not read; the stream is reset when the
//! client reads again. The broker cannot free data that hyper has accepted and not sent, so a body hands over its data in
//! small, copied pieces.
//!
//! A response may also have a callback that runs when it has been sent. If the response is dropped before, the callback does
//! not run.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use howdah_core::{error::Error, job::ClusterSettings};
use howdah_engine::{
    memory::{AnswerMemory, Held, Memory},
    operate::jobs::LIST_BYTES,
};
use howdah_proto::Rpc;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Extensions, Status, body::Body, codegen::http::Response};

use crate::api::{peer::PeerInfo, receive::Kept};

/// Time for which a client may leave a response unread before the response is ended.
pub(crate) const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// Minimum rate, in bytes per second, at which a client must read a single-message response after the first `TAKEN_WITHIN`.
pub(crate) const RATE: usize = 64 << 10;
/// Memory for a response with a list of ids, names or numbers.
pub(super) const SHORT: usize = 512 << 10;
/// Memory for a response with the settings and counts of many types, or with many error groups.
pub(super) const MEDIUM: usize = 4 << 20;
/// Memory for a job in a response, in addition to its payload, result and failures: the row, the message and its encoding.
pub(super) const JOB_BYTES: usize = 2 << 10;

/// Memory for a page of jobs: the rows, and the encoded message.
pub(super) fn page_bytes(jobs: usize, cluster: &ClusterSettings, with_payload: bool) -> usize {
    // The last job may exceed the size of a page, by a payload and a result of maximum size.
    let last = if with_payload { 2 * cluster.payload_bytes } else { 0 };
    2 * (LIST_BYTES as usize + last) + jobs * JOB_BYTES
}

/// Size, in bytes, of the pieces in which a body is passed to HTTP/2.
const PIECE: usize = 16 << 10;
/// Number of times that an unread body is checked before its read timeout has passed.
const LOOKS: u32 = 3;

/// How many messages a method answers with, and what bounds their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// One message.
    One,
    /// A stream that reserves memory for its messages.
    Many,
    /// A stream that bounds its memory itself (`session`) or sends little.
    Bounded,
}

impl Answers {
    /// Returns the kind of response of the method with this path.
    pub(super) fn from_path(path: &str) -> Self {
        match Rpc::of_path(path) {
            Some(Rpc::StreamEnqueue | Rpc::WaitJobs) => Self::Many,
            Some(Rpc::Work) | None => Self::Bounded,
            Some(_) => Self::One,
        }
    }
}

/// Memory reserved for a response until the client has read it. The response carries it as an extension.
#[derive(Clone, Debug)]
pub(super) struct AnswerRoom(Vec<Arc<Held>>);

/// Reserves memory for the response of a call, before the response is built.
pub(super) async fn room(memory: &Arc<Memory>, peer: &PeerInfo, bytes: usize) -> Result<Held, Error> {
    AnswerMemory::new(memory, &peer.accounts.answers).take(bytes).await
}

/// Shrinks the memory reservation of a response to the actual size, and attaches it to the response. `bytes` is the memory of
/// its entries, in addition to twice the encoded size.
pub(super) fn hold(extensions: &mut Extensions, mut room: Held, answer: &impl Message, bytes: usize) {
    room.shrink(2 * answer.encoded_len() + bytes);
    extensions.insert(AnswerRoom(vec![Arc::new(room)]));
}

/// Attaches the memory of several partial responses to the response that merges them.
pub(super) fn hold_all(answer: &mut Extensions, parts: Vec<Extensions>) {
    let rooms = parts.into_iter().filter_map(|mut part| part.remove::<AnswerRoom>());
    answer.insert(AnswerRoom(rooms.flat_map(|room| room.0).collect()));
}

/// Memory of a request's message and of its response, reserved until the response has been read.
type Rooms = (Option<Kept>, Option<AnswerRoom>);

/// Response body that ends if the client does not read it.
pub(super) struct Answered {
    state: Arc<Mutex<State>>,
    _watch: AbortOnDropHandle<()>,
}

struct State {
    /// The body of the handler; `None` after its end.
    body: Option<Body>,
    rooms: Rooms,
    /// Next frame, which was polled from the body and not passed to the transport yet.
    ahead: Option<Result<Frame<Bytes>, Status>>,
    piece: Bytes,
    /// Number of times that the transport has polled this body.
    asked: u64,
    /// Number of bytes passed to the transport.
    passed: usize,
    transport: Waker,
    failed: Option<Status>,
}

impl Answered {
    pub(super) fn new(body: Body, rooms: Rooms, answers: Answers, read_timeout: Duration) -> Self {
        let state = Arc::new(Mutex::new(State {
            body: Some(body),
            rooms,
            ahead: None,
            piece: Bytes::new(),
            asked: 0,
            passed: 0,
            transport: Waker::noop().clone(),
            failed: None,
        }));
        let watch = tokio::spawn(watch(Arc::downgrade(&state), answers, read_timeout));
        Self { state, _watch: AbortOnDropHandle::new(watch) }
    }
}

/// Ends the response if the client does not read it in time.
async fn watch(state: Weak<Mutex<State>>, answers: Answers, read_timeout: Duration) {
    let begun = Instant::now();
    let (mut seen, mut idle) = (0, 0);
    loop {
        sleep(read_timeout / LOOKS).await;
        let Some(state) = state.upgrade() else { return };
        let mut state = state.lock();
        if state.body.is_none() {
            return;
        }
        let is_read = state.asked != seen || !state.has_something();
        seen = state.asked;
        idle = if is_read { 0 } else { idle + 1 };
        let late = begun.elapsed().saturating_sub(read_timeout);
        let is_slow = answers == Answers::One && state.passed < (late.as_secs_f64() * RATE as f64) as usize;
        if idle >= LOOKS || is_slow {
            let problem =
                format!("the answer was not read within {read_timeout:?}, or slower than {} KiB/s", RATE >> 10);
            state.end(Some(Error::Deadline(problem).into()));
            return;
        }
    }
}

impl State {
    /// Whether a frame is ready to send. The transport does not poll ready frames while the client's flow-control window is
    /// closed.
    fn has_something(&mut self) -> bool {
        if !self.piece.is_empty() || self.ahead.is_some() {
            return true;
        }
        // Polls with the transport's waker, so that a frame that is ready later wakes the transport.
        let transport = self.transport.clone();
        let polled = self.poll_ahead(&mut Context::from_waker(&transport));
        match polled {
            Poll::Ready(Some(frame)) => {
                self.ahead = Some(frame);
                true
            }
            Poll::Ready(None) => {
                self.end(None);
                false
            }
            Poll::Pending => false,
        }
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match (self.ahead.take(), &mut self.body) {
            (Some(frame), _) => Poll::Ready(Some(frame)),
            (None, Some(body)) => Pin::new(body).poll_frame(context),
            (None, None) => Poll::Ready(None),
        }
    }

    /// Frees all memory.
    fn end(&mut self, failed: Option<Status>) {
        (self.body, self.rooms, self.ahead, self.piece) = (None, (None, None), None, Bytes::new());
        self.failed = failed;
    }

    /// Returns the next piece of the current frame. It is copied, so that the memory of the whole message can be freed.
    fn next_piece(&mut self) -> Option<Bytes> {
        if self.piece.is_empty() {
            return None;
        }
        let piece = Bytes::copy_from_slice(&self.piece.split_to(self.piece.len().min(PIECE)));
        self.passed += piece.len();
        Some(piece)
    }
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut state = self.state.lock();
        state.asked += 1;
        if let Some(failed) = state.failed.take() {
            return Poll::Ready(Some(Err(failed)));
        }
        if let Some(piece) = state.next_piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match state.poll_ahead(context) {
            Poll::Pending => {
                state.transport.clone_from(context.waker());
                Poll::Pending
            }
            Poll::Ready(None) => {
                state.end(None);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(status))) => Poll::Ready(Some(Err(status))),
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if data.len() > PIECE => {
                    state.piece = data;
                    Poll::Ready(state.next_piece().map(|piece| Ok(Frame::data(piece))))
                }
                Ok(data) => {
                    state.passed += data.len();
                    Poll::Ready(Some(Ok(Frame::data(data))))
                }
                Err(trailers) => Poll::Ready(Some(Ok(trailers))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = self.state.lock();
        let ended = state.body.as_ref().is_none_or(Body::is_end_stream);
        ended && state.failed.is_none() && state.ahead.is_none() && state.piece.is_empty()
    }
}

/// Response extension: a function that is called when the last frame has been passed to the HTTP/2 connection.
#[derive(Clone)]
pub(super) struct OnceSent(Arc<dyn Fn() + Send + Sync>);

impl OnceSent {
    pub(super) fn new(sent: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(sent))
    }
}

/// Wraps the body of a response that has a callback, so that the callback runs at its end.
pub(super) fn when_sent(mut response: Response<Body>) -> Response<Body> {
    match response.extensions_mut().remove::<OnceSent>() {
        None => response,
        Some(sent) => response.map(|body| Body::new(Watched { body, sent })),
    }
}

struct Watched {
    body: Body,
    sent: OnceSent,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // The HTTP/2 connection polls for the trailers only when it has accepted all data before them.
        if frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers)) {
            (self.sent.0)();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
