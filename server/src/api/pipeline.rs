//! `StreamEnqueue`: many requests in flight, answered in their order.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures::{
    Stream, StreamExt as _,
    stream::{self, FuturesOrdered},
};
use howdah_proto::v1;
use prost::Message as _;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::{end::End, render};
use crate::{
    driven::driven,
    error::Error,
    job::Limits,
    memory::{Account, Full, Held, Memory},
};

/// The bounds of one pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Requests in flight.
    pub(super) requests: usize,
    /// No more requests are read while this many bytes are in flight. So at most these and one message are held.
    pub(super) bytes: usize,
    /// How long the first request may take to come.
    pub(super) first: Duration,
}

impl Bounds {
    /// At most the bytes of one message. The number of requests is large enough that small ones do not pile up unread
    /// in HTTP/2, which would end the connection.
    pub(super) fn of(limits: &Limits) -> Self {
        Self { requests: 50_000, bytes: limits.message_bytes, first: limits.first_message }
    }
}

/// Memory for the requests of one pipeline that are not answered yet, or whose answers are not read. It is taken in parts,
/// so that a request costs nothing.
pub(super) struct InFlight {
    memory: Arc<Memory>,
    account: Arc<Account>,
    parts: Vec<Held>,
    taking: Option<Taking>,
    used: usize,
}

/// A part that is waited for.
type Taking = Pin<Box<dyn Future<Output = Result<Held, Full>> + Send>>;

/// What a request takes until its answer is read, besides its answer: two futures and a channel.
const REQUEST_BYTES: usize = 768;
/// What a pipeline may use without a part: its stream takes about as much.
const FREE: usize = 16 << 10;
/// The size of a part.
const PART: usize = 256 << 10;

impl InFlight {
    pub(super) fn new(memory: &Arc<Memory>, account: &Arc<Account>) -> Self {
        Self { memory: memory.clone(), account: account.clone(), parts: Vec::new(), taking: None, used: 0 }
    }

    /// What a request of so many jobs takes.
    fn weight(jobs: usize) -> usize {
        REQUEST_BYTES + jobs * size_of::<v1::EnqueuedJob>()
    }

    fn has_room(&self) -> bool {
        self.used < FREE + self.parts.len() * PART
    }

    /// Takes one more part, when there is memory.
    async fn take(&mut self) {
        let (memory, account) = (self.memory.clone(), self.account.clone());
        let taking = self.taking.get_or_insert_with(|| Box::pin(async move { memory.take(&account, PART).await }));
        let part = taking.await;
        self.taking = None;
        match part {
            Ok(part) => self.parts.push(part),
            Err(Full) => sleep(FULL).await,
        }
    }

    fn less(&mut self, bytes: usize) {
        self.used -= bytes;
        // With half a part to spare, so that it is not taken and returned with every request.
        while !self.parts.is_empty() && self.used + PART / 2 < FREE + (self.parts.len() - 1) * PART || self.used == 0 {
            if self.parts.pop().is_none() {
                break;
            }
        }
    }
}

/// How long a pipeline waits when too many wait for memory.
const FULL: Duration = Duration::from_millis(100);

/// The result of a request.
type Stored = Result<Vec<v1::EnqueuedJob>, Error>;
/// A future result, ready once the request is stored.
pub(super) type Storing = Pin<Box<dyn Future<Output = Stored> + Send>>;

/// Answers each request by calling `enqueue`. The future that it returns queues the request, and gives another future
/// that stores it. Requests are queued one after the other, so jobs keep the order in which they were sent. Any number
/// are stored at once.
///
/// A request that fails is answered with its error, and the stream goes on. The stream ends when the requests end, when
/// the first one does not come in time, or when the broker stops. Requests in flight are answered before that. Nothing
/// is read while the answers are not read.
pub(super) fn pipeline<S, F, P>(
    requests: S,
    (bounds, memory): (Bounds, InFlight),
    end: End,
    enqueue: F,
) -> impl Stream<Item = Result<v1::StreamEnqueueResponse, Status>> + Send + 'static
where
    S: Stream<Item = Result<v1::StreamEnqueueRequest, Status>> + Unpin + Send + 'static,
    F: Fn(v1::StreamEnqueueRequest) -> P + Send + 'static,
    P: Future<Output = Storing> + Send + 'static,
{
    let state = Pipeline {
        requests,
        enqueue,
        bounds,
        placing: None,
        in_flight: FuturesOrdered::new(),
        bytes: 0,
        memory,
        reading: Reading::First(Box::pin(sleep(bounds.first))),
        end,
    };
    stream::unfold(state, |mut state| async move { Some((state.next().await?, state)) })
}

struct Pipeline<S, F> {
    requests: S,
    enqueue: F,
    bounds: Bounds,
    /// The last request that was read, until it is queued.
    placing: Option<Placing>,
    in_flight: FuturesOrdered<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    bytes: usize,
    memory: InFlight,
    reading: Reading,
    end: End,
}

struct Placing {
    place: Pin<Box<dyn Future<Output = Storing> + Send>>,
    sequence: u64,
    size: Size,
}

/// The size of a request: its bytes, and those that it takes until its answer is read.
#[derive(Clone, Copy)]
struct Size {
    bytes: usize,
    weight: usize,
}

/// An answer and the size of its request.
type Answer = (v1::StreamEnqueueResponse, Size);

enum Reading {
    /// No request has come yet.
    First(Pin<Box<Sleep>>),
    /// Requests have come.
    More,
    /// No more requests are read. The status ends the stream after the last answer.
    Over(Option<Status>),
}

impl<S, F, P> Pipeline<S, F>
where
    S: Stream<Item = Result<v1::StreamEnqueueRequest, Status>> + Unpin,
    F: Fn(v1::StreamEnqueueRequest) -> P,
    P: Future<Output = Storing> + Send + 'static,
{
    /// The next answer, or the end of the stream. Answers go before requests, so that they are never delayed. A request
    /// that was read is begun at once.
    async fn next(&mut self) -> Option<Result<v1::StreamEnqueueResponse, Status>> {
        loop {
            if self.in_flight.is_empty()
                && self.placing.is_none()
                && let Reading::Over(end) = &mut self.reading
            {
                return end.take().map(Err);
            }
            let open = !matches!(self.reading, Reading::Over(_));
            let room =
                self.placing.is_none() && self.in_flight.len() < self.bounds.requests && self.bytes < self.bounds.bytes;
            let has_memory = self.memory.has_room();
            tokio::select! {
                biased;
                storing = placed(&mut self.placing) => self.begin(storing),
                Some((answer, size)) = self.in_flight.next() => {
                    self.bytes -= size.bytes;
                    self.memory.less(size.weight);
                    return Some(Ok(answer));
                }
                error = self.end.reached("send what was not answered on a new stream"), if open => {
                    self.reading = Reading::Over(Some(error.into()));
                }
                () = self.memory.take(), if open && room && !has_memory => {}
                request = self.requests.next(), if open && room && has_memory => self.take(request),
                () = silence(&mut self.reading) => {
                    let problem = format!("no request within {:?} of opening the stream", self.bounds.first);
                    self.reading = Reading::Over(Some(Error::Deadline(problem).into()));
                }
            }
        }
    }

    fn begin(&mut self, storing: Storing) {
        if let Some(Placing { sequence, size, .. }) = self.placing.take() {
            self.in_flight.push_back(Box::pin(async move { (answer(sequence, storing.await), size) }));
        }
    }

    fn take(&mut self, request: Option<Result<v1::StreamEnqueueRequest, Status>>) {
        match request {
            Some(Ok(request)) => {
                let size = Size { bytes: request.encoded_len(), weight: InFlight::weight(request.jobs.len()) };
                let sequence = request.sequence;
                // It may hold what others wait for: a new task type, a place among what gathers.
                self.placing = Some(Placing { place: Box::pin(driven((self.enqueue)(request))), sequence, size });
                self.bytes += size.bytes;
                self.memory.used += size.weight;
                self.reading = Reading::More;
            }
            // The decoder does not go on after an error: the stream ends, after the answers.
            Some(Err(status)) => self.reading = Reading::Over(Some(status)),
            None => self.reading = Reading::Over(None),
        }
    }
}

/// Waits until the request is queued.
async fn placed(placing: &mut Option<Placing>) -> Storing {
    match placing {
        Some(placing) => placing.place.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Waits until the time for the first request is over.
async fn silence(reading: &mut Reading) {
    match reading {
        Reading::First(timer) => pin!(timer).await,
        Reading::More | Reading::Over(_) => std::future::pending().await,
    }
}

fn answer(sequence: u64, stored: Stored) -> v1::StreamEnqueueResponse {
    let (jobs, error) = match stored {
        Ok(jobs) => (jobs, None),
        Err(error) => (Vec::new(), Some(render::request_error(&error))),
    };
    v1::StreamEnqueueResponse { sequence, jobs, error }
}
