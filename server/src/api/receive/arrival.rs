//! Reception of one large message. A separate task receives it and reserves memory as the bytes arrive. The task also runs
//! while the call is not polled, for example because the client does not read responses.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use howdah_core::error::Error;
use howdah_engine::memory::Held;
use hyper::body::Body as _;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, body::Body};

use super::{
    budget::{Budget, human},
    frames::{Growth, PREFIX},
    pace::{LEAST, Pace, Slow},
    pieces::{Pieces, inflate},
};
use crate::api::peer::PeerInfo;

/// Memory is reserved for every 4 KiB that have arrived. So the length in the prefix alone reserves none, and a slow sender
/// does not cause one reservation for each byte.
const STEP: usize = 4 << 10;

/// A large message whose reception begins.
#[derive(Debug)]
pub(super) struct Coming {
    /// Length of the message without its prefix, in bytes.
    pub(super) length: usize,
    /// Whether the message is gzipped. If so, it is decompressed once all of it has arrived.
    pub(super) gzipped: bool,
    /// Bytes of the message that have arrived already, starting with the prefix.
    pub(super) first: VecDeque<Bytes>,
    /// Rest of the request body.
    pub(super) body: Body,
    /// Memory that the decoded fields of the message take.
    pub(super) growth: Growth,
}

/// A received message.
#[derive(Debug)]
pub(super) struct Arrived {
    /// The whole message, with its prefix.
    pub(super) pieces: VecDeque<Bytes>,
    /// Bytes of the request that follow the message.
    pub(super) rest: VecDeque<Bytes>,
    /// Rest of the request body.
    pub(super) body: Body,
}

/// A message that is being received or has been received, with its memory reservation. Dropping it frees both.
#[derive(Debug)]
pub(in crate::api) struct Arrival {
    state: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
enum State {
    /// The message is being received. Holds the waker of the call that waits for it.
    Coming(Option<Waker>),
    Here(Arrived, Held),
    Failed(Status),
    /// The decoder has taken the message; its memory stays reserved.
    Taken(#[expect(dead_code, reason = "its Drop releases the memory")] Held),
    Over,
}

impl Arrival {
    /// Starts a task that receives a message.
    pub(super) fn begin(coming: Coming, peer: PeerInfo, budget: Arc<Budget>) -> Self {
        let state = Arc::new(Mutex::new(State::Coming(None)));
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let arrived = receive(coming, &peer, &budget).await;
            put(&shared, arrived);
            // The call must take this message and ask for the next one within this time.
            sleep(budget.timeouts.held).await;
            expire(&shared, budget.timeouts.held);
        });
        Self { state, _task: AbortOnDropHandle::new(task) }
    }

    /// Takes the received message. Its memory stays reserved.
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
        // The memory of the message is freed at once, without waiting for the end of the task.
        *self.state.lock() = State::Over;
    }
}

fn put(state: &Mutex<State>, arrived: Result<(Arrived, Held), Status>) {
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

async fn receive(coming: Coming, peer: &PeerInfo, budget: &Budget) -> Result<(Arrived, Held), Status> {
    let Coming { length, gzipped, first, body, growth } = coming;
    let wire = PREFIX + length;
    let within = budget.timeouts.message + budget.timeouts.mib * (wire >> 20) as u32;
    let held = budget.begin(wire, peer).await?;
    let pace = Pace::new(within);
    let mut gathering = Gathering { budget, peer, body, chunks: first, pace, held, granted: 0, wire, within };
    let mut message = gathering.gather().await?;
    let Gathering { body, chunks: rest, mut held, .. } = gathering;
    if gzipped {
        message = inflate(message, budget, (&mut held, peer)).await?;
    }
    let mut decoded = message.reader();
    decoded.skip(PREFIX);
    budget.grow(&mut held, growth.decoded(decoded), (0, peer)).await?;
    held.arrived();
    Ok((Arrived { pieces: message.into(), rest, body }, held))
}

/// A message during its reception.
struct Gathering<'a> {
    budget: &'a Budget,
    peer: &'a PeerInfo,
    body: Body,
    /// Bytes that were read from the request and are not in the message yet.
    chunks: VecDeque<Bytes>,
    pace: Pace,
    held: Held,
    /// Number of bytes of the message for which memory is reserved.
    granted: usize,
    wire: usize,
    within: Duration,
}

impl Gathering<'_> {
    /// Collects the bytes of the message. Leaves later bytes of the request in `chunks`.
    async fn gather(&mut self) -> Result<Pieces, Status> {
        let mut message = Pieces::default();
        loop {
            let missing = self.wire - message.len();
            if missing == 0 {
                return Ok(message);
            }
            let Some(chunk) = self.chunks.front_mut() else {
                let chunk = self.next().await?;
                self.pace.came(chunk.len());
                self.chunks.push_back(chunk);
                continue;
            };
            let chunk = chunk.split_to(chunk.len().min(missing));
            if self.chunks.front().is_some_and(Bytes::is_empty) {
                self.chunks.pop_front();
            }
            message.push(&chunk, missing);
            let came = message.len() - self.granted;
            if came >= STEP || message.len() == self.wire {
                self.budget.grow(&mut self.held, came, (missing - chunk.len(), self.peer)).await?;
                self.granted += came;
            }
        }
    }

    async fn next(&mut self) -> Result<Bytes, Status> {
        let Self { body, pace, budget, wire, within, .. } = self;
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let frame = pace.next(frame, || budget.large.is_short()).await.map_err(|slow| {
            let size = human(*wire);
            Error::Deadline(match slow {
                Slow::Late => format!("a message of {size} must arrive within {within:?}; send smaller ones"),
                Slow::Others => {
                    let least = human(LEAST);
                    format!(
                        "a message of {size} arrived at less than {least}/s while others waited for memory; send \
                         smaller ones"
                    )
                }
            })
        })?;
        frame.ok_or_else(cut_short)??.into_data().map_err(|_| cut_short())
    }
}

/// Error for a request that ends within a message.
pub(super) fn cut_short() -> Status {
    Status::internal("the request ended in the middle of a message")
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::{super::pieces::PIECE, *};
    use crate::api::receive::ReceiveTimeouts;
    use howdah_core::job::Limits;

    const LONG: Duration = Duration::from_secs(60);

    fn budget(held: Duration) -> Arc<Budget> {
        let limits = Limits { received_bytes: 1 << 20, ..Limits::default() };
        let timeouts = ReceiveTimeouts { room: LONG, message: LONG, mib: LONG, held, end: LONG, answer: LONG };
        Arc::new(Budget::new(&limits, timeouts))
    }

    /// Receives a message that has arrived completely, followed by one byte of the next one.
    fn begin(budget: &Arc<Budget>) -> Arrival {
        let first = [Bytes::from(vec![7; PIECE + 6])].into();
        let growth = Growth::from_path("/");
        let coming = Coming { length: PIECE, gzipped: false, first, body: Body::empty(), growth };
        Arrival::begin(coming, PeerInfo::default(), budget.clone())
    }

    async fn arrived(arrival: &Arrival) -> Result<Arrived, Status> {
        timeout(LONG, poll_fn(|context| arrival.poll(context))).await.expect("an end")
    }

    /// Waits until the memory of the budget is free.
    async fn room(budget: &Arc<Budget>) {
        timeout(LONG, budget.large.take(&Arc::default(), 1 << 20)).await.expect("room").unwrap();
    }

    #[tokio::test]
    async fn a_message_arrives_in_pieces_and_keeps_its_room_until_it_is_dropped() {
        let budget = budget(LONG);
        let arrival = begin(&budget);
        let message = arrived(&arrival).await.unwrap();
        let sizes: Vec<usize> = message.pieces.iter().map(Bytes::len).collect();
        assert_eq!((sizes, message.rest.iter().map(Bytes::len).sum::<usize>()), (vec![PIECE, 5], 1));
        let mut waiting = Box::pin(room(&budget));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(arrival);
        waiting.await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_the_service_does_not_read_is_dropped_and_frees_its_memory() {
        let budget = budget(Duration::from_secs(10));
        let arrival = begin(&budget);
        tokio::task::yield_now().await;
        room(&budget).await;
        let status = arrived(&arrival).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_does_not_go_on_loses_the_room_of_its_last_message() {
        let budget = budget(Duration::from_secs(10));
        let arrival = begin(&budget);
        arrived(&arrival).await.unwrap();
        room(&budget).await;
    }
}
