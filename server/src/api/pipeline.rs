//! `StreamEnqueue`: many requests in flight, answered in their order.

use std::{
    future::Future,
    pin::{Pin, pin},
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
use crate::{error::Error, job::Limits};

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
    bounds: Bounds,
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
    reading: Reading,
    end: End,
}

struct Placing {
    place: Pin<Box<dyn Future<Output = Storing> + Send>>,
    sequence: u64,
    bytes: usize,
}

/// An answer and the bytes that its request held.
type Answer = (v1::StreamEnqueueResponse, usize);

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
            tokio::select! {
                biased;
                storing = placed(&mut self.placing) => self.begin(storing),
                Some((answer, bytes)) = self.in_flight.next() => {
                    self.bytes -= bytes;
                    return Some(Ok(answer));
                }
                error = self.end.reached("send what was not answered on a new stream"), if open => {
                    self.reading = Reading::Over(Some(error.into()));
                }
                request = self.requests.next(), if open && room => self.take(request),
                () = silence(&mut self.reading) => {
                    let problem = format!("no request within {:?} of opening the stream", self.bounds.first);
                    self.reading = Reading::Over(Some(Error::Deadline(problem).into()));
                }
            }
        }
    }

    fn begin(&mut self, storing: Storing) {
        if let Some(Placing { sequence, bytes, .. }) = self.placing.take() {
            self.in_flight.push_back(Box::pin(async move { (answer(sequence, storing.await), bytes) }));
        }
    }

    fn take(&mut self, request: Option<Result<v1::StreamEnqueueRequest, Status>>) {
        match request {
            Some(Ok(request)) => {
                let (sequence, bytes) = (request.sequence, request.encoded_len());
                self.placing = Some(Placing { place: Box::pin((self.enqueue)(request)), sequence, bytes });
                self.bytes += bytes;
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
