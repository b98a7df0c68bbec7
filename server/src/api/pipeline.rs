//! `StreamEnqueue` (a pipeline): many enqueue requests in flight, answered in order.

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
use howdah_core::{error::Error, job::Limits};
use howdah_engine::{
    detached::detached,
    memory::{Account, Full, Held, Memory},
};
use howdah_proto::v1;
use prost::Message as _;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::api::{end::End, render::duration};

/// Limits of one pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Maximum number of requests in flight in one pipeline.
    pub(super) requests: usize,
    /// Maximum bytes of requests in flight. Reading stops at this limit, so at most one message more is held.
    pub(super) bytes: usize,
    /// Time limit for the first request of a stream.
    pub(super) first: Duration,
}

impl Bounds {
    /// Allows as many bytes in flight as one message may have. The limit on the number of requests is high. Otherwise small
    /// requests would stay unread in HTTP/2 buffers, which ends the connection.
    pub(super) fn new(limits: &Limits) -> Self {
        Self { requests: 50_000, bytes: limits.message_bytes, first: limits.first_message }
    }
}

/// Memory for the requests of one pipeline that are unanswered, or whose answers are unread. Reserved in chunks, so that few
/// requests have to reserve memory.
pub(super) struct InFlight {
    memory: Arc<Memory>,
    account: Arc<Account>,
    parts: Vec<Held>,
    taking: Option<Taking>,
    used: usize,
}

/// A pending reservation of a chunk of memory.
type Taking = Pin<Box<dyn Future<Output = Result<Held, Full>> + Send>>;

/// Memory of a request until its answer is read, besides the answer: two futures and a channel.
const REQUEST_BYTES: usize = 768;
/// Bytes that a pipeline may use without a reservation, because its stream uses about as much in any case.
const FREE: usize = 16 << 10;
/// Size of a chunk of reserved memory, in bytes.
const PART: usize = 256 << 10;

impl InFlight {
    pub(super) fn new(memory: &Arc<Memory>, account: &Arc<Account>) -> Self {
        Self { memory: memory.clone(), account: account.clone(), parts: Vec::new(), taking: None, used: 0 }
    }

    /// Memory for a request with this many jobs.
    fn weight(jobs: usize) -> usize {
        REQUEST_BYTES + jobs * size_of::<v1::EnqueuedJob>()
    }

    fn has_room(&self) -> bool {
        self.used < FREE + self.parts.len() * PART
    }

    /// Reserves one more chunk when memory is available.
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
        // Keeps half a chunk spare, so that a chunk is not reserved and released with every request.
        while !self.parts.is_empty() && self.used + PART / 2 < FREE + (self.parts.len() - 1) * PART || self.used == 0 {
            if self.parts.pop().is_none() {
                break;
            }
        }
    }
}

/// Pause before the next attempt to reserve memory when too many callers wait for it.
const FULL: Duration = Duration::from_millis(100);

/// Result of an enqueue request.
type Stored = Result<Vec<v1::EnqueuedJob>, Error>;
/// Future that completes when the jobs of a request are stored.
pub(super) type Storing = Pin<Box<dyn Future<Output = Stored> + Send>>;

/// Answers each request by calling `enqueue`. The future of `enqueue` queues the request, and returns another future that
/// completes when the jobs are stored. Requests are queued one after the other, so jobs keep the order in which they were sent.
/// Any number of requests are stored concurrently.
///
/// A failed request is answered with its error, and the stream continues. The stream ends when the requests end, when the first
/// request does not arrive in time, or when the broker stops. Requests in flight are answered before the end. No requests are
/// read while the client leaves answers unread.
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
    /// The last request read, until it is queued.
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

/// Size of a request: its encoded bytes, and the memory that it uses until its answer is read.
#[derive(Clone, Copy)]
struct Size {
    bytes: usize,
    weight: usize,
}

/// An answer, and the size of the request that it answers.
type Answer = (v1::StreamEnqueueResponse, Size);

enum Reading {
    /// The first request has not arrived; the timer ends the wait for it.
    First(Pin<Box<Sleep>>),
    /// The first request has arrived, and more may follow.
    More,
    /// No more requests are read. The status, if any, ends the stream after the last answer.
    Over(Option<Status>),
}

impl<S, F, P> Pipeline<S, F>
where
    S: Stream<Item = Result<v1::StreamEnqueueRequest, Status>> + Unpin,
    F: Fn(v1::StreamEnqueueRequest) -> P,
    P: Future<Output = Storing> + Send + 'static,
{
    /// Returns the next answer, or `None` at the end of the stream. Sending answers takes precedence over reading requests. A
    /// request is queued as soon as it is read.
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
                error = self.end.reached("send the unanswered requests on a new stream"), if open => {
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
                // The request may hold resources that others wait for, such as a new task type or a slot in the intake queue.
                // So the request runs detached: it makes progress even while the client does not read answers.
                self.placing = Some(Placing { place: Box::pin(detached((self.enqueue)(request))), sequence, size });
                self.bytes += size.bytes;
                self.memory.used += size.weight;
                self.reading = Reading::More;
            }
            // The decoder returns no more requests after an error, so the stream ends after the remaining answers.
            Some(Err(status)) => self.reading = Reading::Over(Some(status)),
            None => self.reading = Reading::Over(None),
        }
    }
}

/// Waits until the last request that was read is queued. Never completes without such a request.
async fn placed(placing: &mut Option<Placing>) -> Storing {
    match placing {
        Some(placing) => placing.place.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of the first request's time limit. Never completes once a request has arrived.
async fn silence(reading: &mut Reading) {
    match reading {
        Reading::First(timer) => pin!(timer).await,
        Reading::More | Reading::Over(_) => std::future::pending().await,
    }
}

fn answer(sequence: u64, stored: Stored) -> v1::StreamEnqueueResponse {
    let (jobs, error) = match stored {
        Ok(jobs) => (jobs, None),
        Err(error) => (Vec::new(), Some(request_error(&error))),
    };
    v1::StreamEnqueueResponse { sequence, jobs, error }
}

/// Converts an error to the answer to a failed pipeline request. It has the same code, text, field and reason as the `Status`
/// of a call.
fn request_error(error: &Error) -> v1::RequestError {
    let (code, reason) = error.code();
    v1::RequestError {
        code: code as i32,
        message: error.to_string(),
        field: error.field().unwrap_or_default().to_owned(),
        reason: reason.to_owned(),
        retry_after: error.retry_after().map(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_error_has_the_code_field_and_reason_of_the_error() {
        let error = request_error(&Error::invalid("jobs[3].task_type", "is empty"));
        assert_eq!(
            (error.code, error.field.as_str(), error.reason.as_str()),
            (3, "jobs[3].task_type", "INVALID_FIELD")
        );
        assert_eq!(error.message, "jobs[3].task_type is empty");
        let error = request_error(&Error::RequestKeyReused("k".into()));
        assert_eq!((error.code, error.field.as_str()), (6, "request_key"));
    }
}
