//! The body of a request. Small messages pass through; a large one is passed on when it has arrived as a whole.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame};
use tonic::{Status, body::Body};

use super::{
    Call,
    arrival::{Arrival, cut_short},
    budget::Budget,
    frames::{Frames, Large},
};
use crate::api::peer::PeerInfo;

/// A body that waits for memory before it passes on a large message.
pub(super) struct ReceivedBody {
    source: Source,
    frames: Frames,
    /// Bytes that were read and not passed on yet.
    rest: Bytes,
    /// A large message that is being passed on.
    pieces: VecDeque<Bytes>,
    /// A large message was passed on, and the call may hold its memory.
    holding: bool,
    call: Arc<Call>,
    peer: PeerInfo,
    budget: Arc<Budget>,
}

enum Source {
    /// We read the body.
    Here(Body),
    /// A large message is being received.
    Away(Arrival),
    /// The body has ended.
    Over,
}

impl ReceivedBody {
    pub(super) fn new(body: Body, call: Arc<Call>, peer: PeerInfo, budget: Arc<Budget>) -> Self {
        let frames = Frames::new(budget.message_bytes);
        let (rest, pieces) = (Bytes::new(), VecDeque::new());
        Self { source: Source::Here(body), frames, rest, pieces, holding: false, call, peer, budget }
    }

    /// Starts to receive the message whose first bytes are `rest`.
    fn begin(&mut self, large: Large) -> Result<(), Status> {
        if self.holding && !self.call.goes_on() {
            // A call that waits for more memory while it holds some could wait for itself.
            return Err(Status::invalid_argument("this call takes one message"));
        }
        if let Source::Here(body) = mem::replace(&mut self.source, Source::Over) {
            let first = mem::take(&mut self.rest);
            let arrival = Arrival::begin(large, first, body, self.peer.clone(), self.budget.clone());
            self.source = Source::Away(arrival);
        }
        Ok(())
    }

    fn keep(&mut self, chunk: Bytes) {
        if self.rest.is_empty() {
            self.rest = chunk;
        } else {
            // The beginning of a prefix: at most four bytes.
            let mut both = BytesMut::with_capacity(self.rest.len() + chunk.len());
            both.extend_from_slice(&self.rest);
            both.extend_from_slice(&chunk);
            self.rest = both.freeze();
        }
    }

    /// Receives more: ready when there are new bytes to check, or something to pass on.
    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.holding && self.call.goes_on() {
                self.holding = false;
            }
            let body = match &mut self.source {
                Source::Here(body) => body,
                Source::Away(arrival) => {
                    let arrived = ready!(arrival.poll(context))?;
                    (self.pieces, self.rest) = (arrived.pieces, arrived.rest);
                    if let Source::Away(arrival) = mem::replace(&mut self.source, Source::Here(arrived.body)) {
                        self.call.hold(arrival);
                        self.holding = true;
                    }
                    continue;
                }
                Source::Over => return Poll::Ready(None),
            };
            let look = self.frames.look(&self.rest);
            if look.passes > 0 {
                return Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(look.passes)))));
            }
            if let Some(large) = look.large {
                self.begin(large)?;
                continue;
            }
            match ready!(Pin::new(body).poll_frame(context)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(chunk))) => self.keep(chunk),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                Some(Ok(Err(_))) | None if !self.rest.is_empty() => return Poll::Ready(Some(Err(cut_short()))),
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl HttpBody for ReceivedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
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
            Source::Away(_) => false,
            Source::Over => true,
        };
        ended && self.rest.is_empty() && self.pieces.is_empty()
    }
}
