//! Request body. Small messages that need little memory go directly to the decoder. All other messages are held back until
//! memory is reserved and they have arrived completely.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use howdah_core::error::Error;
use howdah_engine::memory::Held;
use hyper::body::{Body as HttpBody, Frame};
use tokio::time::{Sleep, sleep};
use tonic::{Status, body::Body};

use super::{
    Call, Kept,
    arrival::{Arrival, Coming, cut_short},
    budget::Budget,
    frames::{Frames, Growth, Next},
};
use crate::api::peer::PeerInfo;

/// Request body that gives a message to the decoder once memory is reserved for it.
pub(super) struct ReceivedBody {
    source: Source,
    frames: Frames,
    growth: Growth,
    /// Bytes of the request that were read and not passed to the decoder yet: first `rest`, then `next`.
    rest: Bytes,
    next: VecDeque<Bytes>,
    /// First bytes of a small message, until the rest of it has arrived.
    partial: BytesMut,
    /// Number of bytes that `rest` must have before it is checked again. 0: check `rest` now.
    needed: usize,
    /// Pieces of a large message that are still to be passed to the decoder.
    pieces: VecDeque<Bytes>,
    /// Whether the call may still hold the memory of a message that the decoder got.
    holding: bool,
    /// Deadline for the end of the request after the message of a unary call.
    end: Option<Pin<Box<Sleep>>>,
    call: Arc<Call>,
    peer: PeerInfo,
    budget: Arc<Budget>,
}

type Taking = Pin<Box<dyn Future<Output = Result<Held, Error>> + Send>>;

enum Source {
    /// The request body is read here, without a separate task.
    Here(Body),
    /// The small message at the start of `rest` waits for memory.
    Waiting(Body, usize, Taking),
    /// A separate task receives a large message from the body.
    Away(Arrival),
    /// The body has ended.
    Over,
}

/// Data for the decoder; `None` at the end of the body.
type Passed = Option<Result<Frame<Bytes>, Status>>;

impl ReceivedBody {
    pub(super) fn new(
        body: Body,
        (growth, gzip): (Growth, bool),
        call: Arc<Call>,
        peer: PeerInfo,
        budget: Arc<Budget>,
    ) -> Self {
        Self {
            source: Source::Here(body),
            frames: Frames::new(budget.message_bytes, growth, gzip),
            growth,
            rest: Bytes::new(),
            next: VecDeque::new(),
            partial: BytesMut::new(),
            needed: 0,
            pieces: VecDeque::new(),
            holding: false,
            end: None,
            call,
            peer,
            budget,
        }
    }

    /// Rejects the next message of a call that still holds the memory of its previous message. Such a call could wait forever
    /// for memory that it holds itself.
    fn check_goes_on(&self) -> Result<(), Status> {
        if self.holding && !self.call.goes_on() {
            return Err(Status::invalid_argument("this call takes one message, and the request has another one"));
        }
        Ok(())
    }

    /// Starts to receive the large message whose first bytes are in `rest`.
    fn begin(&mut self, length: usize, gzipped: bool) -> Result<(), Status> {
        self.check_goes_on()?;
        if let Source::Here(body) = mem::replace(&mut self.source, Source::Over) {
            let mut first = mem::take(&mut self.next);
            first.push_front(mem::take(&mut self.rest));
            let coming = Coming { length, gzipped, first, body, growth: self.growth };
            self.source = Source::Away(Arrival::begin(coming, self.peer.clone(), self.budget.clone()));
        }
        Ok(())
    }

    /// Reserves memory for the small message at the start of `rest`. Returns the message, or `None` if memory must be waited
    /// for.
    fn weigh(&mut self, wire: usize, weight: usize) -> Result<Option<Bytes>, Status> {
        self.check_goes_on()?;
        if let Some(held) = self.budget.small.try_take(&self.peer.accounts.small, weight) {
            return Ok(Some(self.pass(wire, held)));
        }
        if let Source::Here(body) = mem::replace(&mut self.source, Source::Over) {
            let (budget, peer) = (self.budget.clone(), self.peer.clone());
            let taking = Box::pin(async move { budget.small(weight, &peer).await });
            self.source = Source::Waiting(body, wire, taking);
        }
        Ok(None)
    }

    fn pass(&mut self, wire: usize, held: Held) -> Bytes {
        self.call.hold(Kept::Small(held));
        self.holding = true;
        self.rest.split_to(wire)
    }

    /// Moves bytes to `rest` until it has the needed number. Returns whether enough have arrived.
    fn fill(&mut self) -> bool {
        if self.partial.is_empty() && self.rest.is_empty() {
            self.rest = self.next.pop_front().unwrap_or_default();
        }
        if self.partial.is_empty() && self.rest.len() >= self.needed {
            self.needed = 0;
            return true;
        }
        self.partial.reserve(self.needed - self.partial.len());
        self.partial.extend_from_slice(&mem::take(&mut self.rest));
        while self.partial.len() < self.needed
            && let Some(chunk) = self.next.front_mut()
        {
            let some = chunk.split_to(chunk.len().min(self.needed - self.partial.len()));
            self.partial.extend_from_slice(&some);
            if chunk.is_empty() {
                self.next.pop_front();
            }
        }
        if self.partial.len() < self.needed {
            return false;
        }
        self.rest = mem::take(&mut self.partial).freeze();
        self.needed = 0;
        true
    }

    /// Reads from the request body. `Ready(None)` means that more bytes have arrived in `rest` or `next`.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Passed>> {
        let Source::Here(body) = &mut self.source else { return Poll::Ready(Some(None)) };
        let polled = Pin::new(body).poll_frame(context);
        if polled.is_pending() && self.holding {
            // The message of a unary call has arrived. The request must end now, so that the call can be answered.
            let end = self.end.get_or_insert_with(|| Box::pin(sleep(self.budget.timeouts.end)));
            ready!(end.as_mut().poll(context));
            let problem = format!("the request did not end within {:?} of its message", self.budget.timeouts.end);
            return Poll::Ready(Some(Some(Err(Error::Deadline(problem).into()))));
        }
        let is_cut = !self.rest.is_empty() || !self.partial.is_empty();
        Poll::Ready(match ready!(polled).map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(chunk))) => {
                self.next.push_back(chunk);
                None
            }
            Some(Err(status)) => Some(Some(Err(status))),
            Some(Ok(Err(_))) | None if is_cut => Some(Some(Err(cut_short()))),
            Some(Ok(Err(trailers))) => Some(Some(Ok(trailers))),
            None => Some(None),
        })
    }

    /// Reads until there is data for the decoder.
    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Passed> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.holding && self.call.goes_on() {
                self.holding = false;
            }
            match &mut self.source {
                Source::Here(_) => {}
                Source::Waiting(_, wire, taking) => {
                    let (wire, held) = (*wire, ready!(taking.as_mut().poll(context))?);
                    if let Source::Waiting(body, ..) = mem::replace(&mut self.source, Source::Over) {
                        self.source = Source::Here(body);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(self.pass(wire, held)))));
                }
                Source::Away(arrival) => {
                    let arrived = ready!(arrival.poll(context))?;
                    (self.pieces, self.next) = (arrived.pieces, arrived.rest);
                    if let Source::Away(arrival) = mem::replace(&mut self.source, Source::Here(arrived.body)) {
                        self.call.hold(Kept::Large(arrival));
                        self.holding = true;
                    }
                    continue;
                }
                Source::Over => return Poll::Ready(None),
            }
            if self.needed > 0 && !self.fill() {
                match ready!(self.poll_body(context)) {
                    Some(passed) => return Poll::Ready(passed),
                    None => continue,
                }
            }
            let look = self.frames.look(&self.rest);
            if look.passes > 0 {
                return Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(look.passes)))));
            }
            match look.next {
                Next::Unknown { bytes } => self.needed = bytes,
                Next::Large { length, gzipped } => self.begin(length, gzipped)?,
                Next::Small { wire, weight } => {
                    if let Some(message) = self.weigh(wire, weight)? {
                        return Poll::Ready(Some(Ok(Frame::data(message))));
                    }
                }
            }
        }
    }
}

impl HttpBody for ReceivedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Passed> {
        let this = self.get_mut();
        let polled = ready!(this.poll_source(context));
        if matches!(polled, Some(Err(_)) | None) {
            this.source = Source::Over;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        let ended = match &self.source {
            Source::Here(body) => body.is_end_stream(),
            Source::Waiting(..) | Source::Away(_) => false,
            Source::Over => true,
        };
        ended && self.rest.is_empty() && self.partial.is_empty() && self.next.is_empty() && self.pieces.is_empty()
    }
}
