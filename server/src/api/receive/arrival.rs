//! One large message. A task of its own waits for memory and receives it, also while its call is not polled, which is
//! the case while the client does not read answers.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hyper::body::Body as _;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, body::Body};

use super::{
    budget::{Budget, Room, human},
    frames::Large,
};
use crate::{api::peer::PeerInfo, error::Error};

/// A message is kept in pieces of this size, not in the frames that came, which may have one byte each. The decoder
/// copies the pieces, and they are freed one by one. Pieces this large go back to the system at once.
const PIECE: usize = 1 << 20;

/// A message that has arrived.
#[derive(Debug)]
pub(super) struct Arrived {
    /// The whole message, with its prefix.
    pub(super) pieces: VecDeque<Bytes>,
    /// The bytes that came after it.
    pub(super) rest: Bytes,
    /// The rest of the request.
    pub(super) body: Body,
}

/// A message that arrives or has arrived, and its memory. Dropping it frees both.
#[derive(Debug)]
pub(super) struct Arrival {
    state: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
enum State {
    /// Still arriving; the waker of the call that wants it.
    Coming(Option<Waker>),
    Here(Arrived, Room),
    Failed(Status),
    /// The decoder has the message.
    Taken(#[expect(dead_code, reason = "held, not looked at")] Room),
    Over,
}

impl Arrival {
    /// Starts to receive a message whose first bytes are `first`.
    pub(super) fn begin(large: Large, first: Bytes, body: Body, peer: PeerInfo, budget: Arc<Budget>) -> Self {
        let state = Arc::new(Mutex::new(State::Coming(None)));
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let arrived = receive(large, first, body, &peer, &budget).await;
            put(&shared, arrived);
            // A call that does not ask for this message, or for the next one, has had its time.
            sleep(budget.patience.held).await;
            expire(&shared, budget.patience.held);
        });
        Self { state, _task: AbortOnDropHandle::new(task) }
    }

    /// The message, once. Its memory stays reserved.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<Arrived, Status>> {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, State::Over) {
            State::Coming(_) => {
                *state = State::Coming(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Here(arrived, room) => {
                *state = State::Taken(room);
                Poll::Ready(Ok(arrived))
            }
            State::Failed(status) => Poll::Ready(Err(status)),
            State::Taken(_) | State::Over => Poll::Ready(Err(cut_short())),
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // Freed at once, not when the task notices.
        *self.state.lock() = State::Over;
    }
}

fn put(state: &Mutex<State>, arrived: Result<(Arrived, Room), Status>) {
    let put = match arrived {
        Ok((arrived, room)) => State::Here(arrived, room),
        Err(status) => State::Failed(status),
    };
    let before = {
        let mut state = state.lock();
        if matches!(*state, State::Over) {
            return;
        }
        mem::replace(&mut *state, put)
    };
    if let State::Coming(Some(waker)) = before {
        waker.wake();
    }
}

fn expire(state: &Mutex<State>, held: Duration) {
    let mut state = state.lock();
    *state = match mem::replace(&mut *state, State::Over) {
        State::Here(..) => {
            let problem = format!("a message was not processed within {held:?}: read the answers of this stream");
            State::Failed(Error::Deadline(problem).into())
        }
        State::Taken(_) => State::Over,
        other => other,
    };
}

async fn receive(
    large: Large,
    first: Bytes,
    mut body: Body,
    peer: &PeerInfo,
    budget: &Budget,
) -> Result<(Arrived, Room), Status> {
    let room = budget.take(large, peer).await?;
    let within = budget.patience.message + budget.patience.mib * (large.wire >> 20) as u32;
    let gathered = timeout(within, gather(large.wire, first, &mut body)).await;
    let (pieces, rest) = gathered.map_err(|_| {
        let size = human(large.wire);
        Error::Deadline(format!("a message of {size} must arrive within {within:?}; send smaller ones"))
    })??;
    Ok((Arrived { pieces, rest, body }, room))
}

/// Collects `missing` bytes, and the bytes after them.
async fn gather(mut missing: usize, first: Bytes, body: &mut Body) -> Result<(VecDeque<Bytes>, Bytes), Status> {
    let (mut pieces, mut piece) = (VecDeque::new(), BytesMut::new());
    let mut chunk = first;
    loop {
        while missing > 0 && !chunk.is_empty() {
            let bytes = chunk.len().min(missing).min(PIECE - piece.len());
            piece.reserve(missing.min(PIECE - piece.len()));
            piece.extend_from_slice(&chunk.split_to(bytes));
            missing -= bytes;
            if piece.len() == PIECE || missing == 0 {
                pieces.push_back(mem::take(&mut piece).freeze());
            }
        }
        if missing == 0 {
            return Ok((pieces, chunk));
        }
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        chunk = frame.ok_or_else(cut_short)??.into_data().map_err(|_| cut_short())?;
    }
}

/// The error for a request that ends in the middle of a message.
pub(super) fn cut_short() -> Status {
    Status::internal("the request ended in the middle of a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::receive::Patience, job::Limits};

    const LONG: Duration = Duration::from_secs(60);

    fn budget(held: Duration) -> Arc<Budget> {
        let limits = Limits { received_bytes: 1 << 20, ..Limits::default() };
        Arc::new(Budget::new(&limits, Patience { room: LONG, message: LONG, mib: LONG, held }))
    }

    /// A message that is there at once, with a byte behind it.
    fn begin(budget: &Arc<Budget>) -> Arrival {
        let large = Large { wire: PIECE + 5, weight: PIECE };
        let first = Bytes::from(vec![7; PIECE + 6]);
        Arrival::begin(large, first, Body::empty(), PeerInfo::default(), budget.clone())
    }

    async fn arrived(arrival: &Arrival) -> Result<Arrived, Status> {
        timeout(LONG, poll_fn(|context| arrival.poll(context))).await.expect("an end")
    }

    /// Waits until there is room again.
    async fn room(budget: &Arc<Budget>) {
        let large = Large { wire: 1 << 20, weight: 1 << 20 };
        timeout(LONG, budget.take(large, &PeerInfo::default())).await.expect("room").unwrap();
    }

    #[tokio::test]
    async fn a_message_arrives_in_pieces_and_keeps_its_room_until_it_is_dropped() {
        let budget = budget(LONG);
        let arrival = begin(&budget);
        let message = arrived(&arrival).await.unwrap();
        let sizes: Vec<usize> = message.pieces.iter().map(Bytes::len).collect();
        assert_eq!((sizes, message.rest.len()), (vec![PIECE, 5], 1));
        let mut waiting = Box::pin(room(&budget));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(arrival);
        waiting.await;
    }

    #[tokio::test]
    async fn a_message_that_nobody_asks_for_loses_its_room_and_itself() {
        let budget = budget(Duration::from_millis(10));
        let arrival = begin(&budget);
        tokio::task::yield_now().await;
        room(&budget).await;
        let status = arrived(&arrival).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
    }

    #[tokio::test]
    async fn a_stream_that_does_not_go_on_loses_the_room_of_its_last_message() {
        let budget = budget(Duration::from_millis(10));
        let arrival = begin(&budget);
        arrived(&arrival).await.unwrap();
        room(&budget).await;
    }
}
