//! Answers that take memory until they are read. A client may close its window and leave them unread; then they end.
//!
//! hyper does not ask a body for more while the client's window is closed, so a body cannot end itself. A task beside it
//! watches whether it is read, and otherwise drops what it holds; the stream is reset when the client reads on. An answer is
//! passed on in small copies: what HTTP/2 has taken and cannot send stays in memory, where nobody else can free it.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use howdah_proto::Rpc;
use hyper::body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Extensions, Request, Response, Status, body::Body};

use super::{peer::PeerInfo, receive::Kept};
use crate::{
    error::Error,
    job::ClusterSettings,
    memory::{AnswerMemory, Held, Memory},
    operate::jobs::LIST_BYTES,
};

/// How long an answer may be left unread.
pub(crate) const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// After that time, an answer must have been read at this rate, in bytes a second.
pub(crate) const RATE: usize = 64 << 10;
/// Memory for an answer that is a list of ids, names or numbers.
pub(super) const SHORT: usize = 512 << 10;
/// Memory for an answer with the settings and counts of many types, or the errors of many groups.
pub(super) const MEDIUM: usize = 4 << 20;
/// What a job takes besides its payload, result and failures: as read, as a message, and packed.
pub(super) const JOB_BYTES: usize = 2 << 10;

/// Memory for a page of jobs: as read, and packed for the network.
pub(super) fn page_bytes(jobs: usize, cluster: &ClusterSettings, with_payload: bool) -> usize {
    // A page ends with the job that fills it. That may have a payload and a result.
    let last = if with_payload { 2 * cluster.payload_bytes } else { 0 };
    2 * (LIST_BYTES as usize + last) + jobs * JOB_BYTES
}

/// What is passed on at once.
const PIECE: usize = 16 << 10;
/// How often the task looks, while an answer may be left unread.
const LOOKS: u32 = 3;

/// How a method answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// Once.
    One,
    /// With a stream, which holds memory for its answers.
    Many,
    /// With a stream that bounds its memory itself (`session`), or sends little.
    Bounded,
}

impl Answers {
    /// How the method of this path answers.
    pub(super) fn of(path: &str) -> Self {
        match Rpc::of_path(path) {
            Some(Rpc::StreamEnqueue | Rpc::WaitJobs) => Self::Many,
            Some(Rpc::Work) | None => Self::Bounded,
            Some(_) => Self::One,
        }
    }
}

/// Memory for an answer, until it has been read. It goes with the answer as an extension.
#[derive(Clone, Debug)]
pub(super) struct AnswerRoom(Vec<Arc<Held>>);

/// The connection of a call.
pub(super) fn peer<T>(request: &Request<T>) -> PeerInfo {
    request.extensions().get::<PeerInfo>().cloned().unwrap_or_default()
}

/// Takes memory for the answer of a call, before the answer is made.
pub(super) async fn room<T>(memory: &Arc<Memory>, request: &Request<T>, bytes: usize) -> Result<Held, Error> {
    let memory = AnswerMemory::new(memory, &peer(request).accounts.answers);
    memory.take(bytes).await
}

/// The answer with its memory, of which it keeps what it needs.
pub(super) fn with_room<T: Message>(answer: T, entries: usize, mut room: Held) -> Response<T> {
    room.shrink(2 * answer.encoded_len() + entries * JOB_BYTES);
    let mut response = Response::new(answer);
    response.extensions_mut().insert(AnswerRoom(vec![Arc::new(room)]));
    response
}

/// An answer that is put together from several holds the memory of them all.
pub(super) fn hold_all(answer: &mut Extensions, parts: Vec<Extensions>) {
    let rooms = parts.into_iter().filter_map(|mut part| part.remove::<AnswerRoom>());
    answer.insert(AnswerRoom(rooms.flat_map(|room| room.0).collect()));
}

/// What an answer holds.
type Rooms = (Option<Kept>, Option<AnswerRoom>);

/// The body of an answer that ends when nobody reads it.
pub(super) struct Answered {
    state: Arc<Mutex<State>>,
    _watch: AbortOnDropHandle<()>,
}

struct State {
    /// `None`: it has ended.
    body: Option<Body>,
    rooms: Rooms,
    /// Taken out of the body, and not passed on yet.
    ahead: Option<Result<Frame<Bytes>, Status>>,
    piece: Bytes,
    /// How often the transport has asked, and what it got.
    asked: u64,
    passed: usize,
    transport: Waker,
    failed: Option<Status>,
}

impl Answered {
    pub(super) fn new(body: Body, rooms: Rooms, answers: Answers, patience: Duration) -> Self {
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
        let watch = tokio::spawn(watch(Arc::downgrade(&state), answers, patience));
        Self { state, _watch: AbortOnDropHandle::new(watch) }
    }
}

/// Ends the answer when it is not read.
async fn watch(state: Weak<Mutex<State>>, answers: Answers, patience: Duration) {
    let begun = Instant::now();
    let (mut seen, mut idle) = (0, 0);
    loop {
        sleep(patience / LOOKS).await;
        let Some(state) = state.upgrade() else { return };
        let mut state = state.lock();
        if state.body.is_none() {
            return;
        }
        let is_read = state.asked != seen || !state.has_something();
        seen = state.asked;
        idle = if is_read { 0 } else { idle + 1 };
        let late = begun.elapsed().saturating_sub(patience);
        let is_slow = answers == Answers::One && state.passed < (late.as_secs_f64() * RATE as f64) as usize;
        if idle >= LOOKS || is_slow {
            let problem = format!("the answer was not read within {patience:?}, or slower than {} KiB/s", RATE >> 10);
            state.end(Some(Error::Deadline(problem).into()));
            return;
        }
    }
}

impl State {
    /// Whether there is something to be passed on now. The transport does not ask while the client's window is closed.
    fn has_something(&mut self) -> bool {
        if !self.piece.is_empty() || self.ahead.is_some() {
            return true;
        }
        // What comes later must still wake the transport.
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

    /// Frees everything.
    fn end(&mut self, failed: Option<Status>) {
        (self.body, self.rooms, self.ahead, self.piece) = (None, (None, None), None, Bytes::new());
        self.failed = failed;
    }

    /// The next piece. It is copied, so that the answer it is a part of can be freed.
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
