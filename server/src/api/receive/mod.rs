//! Bounds the memory of all clients' messages, from their first byte until their answer has been taken.
//!
//! The limit of a message bounds one message, but thousands of clients may send one at the same time. So what a message
//! takes in memory is counted: its bytes, and what becomes of its fields. A large message takes its memory as it arrives,
//! a small one when it is there, and waits until it is free; a connection, or a principal, has at most a quarter. A message keeps its memory
//! until its call is answered and the answer taken; on a stream, until the next message is asked for. Messages that take
//! less than their stream pass as they come.
//!
//! No client can keep memory forever. A task of its own receives a large message, with a time limit, also while its call is
//! not polled. A client that stops sending, or stops reading answers, only loses its own message. No call asks for more
//! memory while it holds some, except for what is still arriving, of which the oldest can always go on (`memory`). So calls
//! never wait for each other in a cycle.

mod arrival; // one large message and the task that receives it
mod body; // the body of a request: light messages pass, others wait for memory
pub(crate) mod budget; // the memory for messages
pub(crate) mod frames; // the bounds of messages
#[cfg(feature = "fuzzing")]
pub(super) mod fuzz; // what fuzzers call
mod inflate; // gzipped messages are unpacked where they are counted
pub(crate) mod pace; // how fast a message must arrive
mod pieces; // the bytes of a message
pub(crate) mod weight; // what a message takes in memory

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tonic::{
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{Request, Response},
    },
};

use super::{
    answer::{AnswerRoom, Answered, Answers},
    peer::PeerInfo,
};
use crate::memory::Held;
use arrival::Arrival;
use body::ReceivedBody;
pub(super) use budget::{Budget, Patience};
use weight::Growth;

/// Puts the messages of all calls under one budget.
#[derive(Clone, Debug)]
pub(super) struct ReceiveWithin(pub(super) Arc<Budget>);

impl<S> tower::Layer<S> for ReceiveWithin {
    type Service = Received<S>;

    fn layer(&self, inner: S) -> Received<S> {
        Received { inner, budget: self.0.clone() }
    }
}

/// A service whose requests come through [`ReceivedBody`].
#[derive(Clone, Debug)]
pub(super) struct Received<S> {
    inner: S,
    budget: Arc<Budget>,
}

impl<S> Service<Request<Body>> for Received<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Response<Body>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = Arc::new(Call::default());
        let peer = request.extensions().get::<PeerInfo>().cloned().unwrap_or_default();
        let growth = Growth::of(request.uri().path());
        let gzip = request.headers().get("grpc-encoding").is_some_and(|encoding| encoding == "gzip");
        let answers = Answers::of(request.uri().path());
        let (budget, patience, until_answered) =
            (self.budget.clone(), self.budget.patience.answer, UntilAnswered(call.clone()));
        let body = |body| Body::new(ReceivedBody::new(body, (growth, gzip), call, peer, budget));
        let answer = self.inner.call(request.map(body));
        Box::pin(async move {
            let mut answer = answer.await?;
            let kept = until_answered.end(answers);
            let room = answer.extensions_mut().remove::<AnswerRoom>();
            if answers == Answers::Many || kept.is_some() || room.is_some() {
                return Ok(answer.map(|body| Body::new(Answered::new(body, (kept, room), answers, patience))));
            }
            Ok(answer)
        })
    }
}

/// A message whose memory is reserved.
#[derive(Debug)]
pub(super) enum Kept {
    Large(#[expect(dead_code, reason = "held, not looked at")] Arrival),
    Small(#[expect(dead_code, reason = "held, not looked at")] Held),
}

/// The message that a call received last, with its memory.
#[derive(Debug, Default)]
struct Call(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The answer, or its beginning, was sent. A call of one message is then done with it. A call that goes on takes a
    /// stream of messages, and has not asked for one yet.
    answered: bool,
    message: Option<Kept>,
}

impl Call {
    /// Keeps the message's memory reserved.
    fn hold(&self, message: Kept) {
        self.0.lock().message = Some(message);
    }

    /// The call asks for more: on a stream, it is done with the last message. Returns whether another one that needs memory
    /// may come.
    fn goes_on(&self) -> bool {
        let mut held = self.0.lock();
        if held.answered {
            held.message = None;
        }
        held.message.is_none()
    }
}

/// Frees the memory of a call's one message, however the call ends.
struct UntilAnswered(Arc<Call>);

impl UntilAnswered {
    /// The call is answered. Returns the message of a call that has one answer, which may be as large.
    fn end(&self, answers: Answers) -> Option<Kept> {
        let mut state = self.0.0.lock();
        state.answered = true;
        state.message.take().filter(|_| answers == Answers::One)
    }
}

impl Drop for UntilAnswered {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.answered = true;
        state.message = None;
    }
}
