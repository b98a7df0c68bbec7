//! Bounds the memory of all clients' messages, from the first byte until their responses have been read.
//!
//! The maximum message size bounds one message, but thousands of clients may send one at the same time. So the memory of all
//! messages is counted: their bytes, and the decoded fields. A large message reserves memory as it arrives, a small one when it
//! has arrived; both wait until memory is free. A connection or a principal gets at most a quarter of the memory. A message
//! keeps its memory until its call is answered and the response has been read; on a stream, until the stream asks for the next
//! message. Messages that need less memory than their stream are not counted.
//!
//! No client can hold memory forever. A separate task receives a large message with a time limit, even while its call is not
//! polled. A client that stops sending, or stops reading responses, loses only its own message. To avoid deadlocks, no call
//! waits for more memory while it holds some. The only exception is messages that are still arriving, of which the oldest can
//! always continue (`memory`).

mod arrival; // one large message and the task that receives it
mod body; // the request body: small messages pass, others wait for memory
pub(crate) mod budget; // the memory for messages
pub(crate) mod frames; // message boundaries, and the memory usage of a message
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz; // entry points for fuzzers
pub(crate) mod pace; // minimum transfer rate of a message
mod pieces; // the bytes of a message, decompressed

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use howdah_engine::memory::Held;
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
use arrival::Arrival;
use body::ReceivedBody;
pub(super) use budget::{Budget, ReceiveTimeouts};
use frames::Growth;

/// Layer that applies one memory budget to the messages of all calls.
#[derive(Clone, Debug)]
pub(super) struct ReceiveWithin(pub(super) Arc<Budget>);

impl<S> tower::Layer<S> for ReceiveWithin {
    type Service = Received<S>;

    fn layer(&self, inner: S) -> Received<S> {
        Received { inner, budget: self.0.clone() }
    }
}

/// Service whose requests have a [`ReceivedBody`].
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
        let growth = Growth::from_path(request.uri().path());
        let gzip = request.headers().get("grpc-encoding").is_some_and(|encoding| encoding == "gzip");
        let answers = Answers::from_path(request.uri().path());
        let (budget, timeouts, until_answered) =
            (self.budget.clone(), self.budget.timeouts.answer, UntilAnswered(call.clone()));
        let body = |body| Body::new(ReceivedBody::new(body, (growth, gzip), call, peer, budget));
        let answer = self.inner.call(request.map(body));
        Box::pin(async move {
            let mut answer = answer.await?;
            let kept = until_answered.end(answers);
            let room = answer.extensions_mut().remove::<AnswerRoom>();
            if answers == Answers::Many || kept.is_some() || room.is_some() {
                return Ok(answer.map(|body| Body::new(Answered::new(body, (kept, room), answers, timeouts))));
            }
            Ok(answer)
        })
    }
}

/// A message with reserved memory.
#[derive(Debug)]
pub(super) enum Kept {
    Large(#[expect(dead_code, reason = "its Drop releases the memory")] Arrival),
    Small(#[expect(dead_code, reason = "its Drop releases the memory")] Held),
}

/// The last message that a call has received, with its memory.
#[derive(Debug, Default)]
struct Call(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether the response has begun. After that, a unary call no longer needs its message, and a streaming call needs its
    /// last message only until it asks for the next one.
    answered: bool,
    message: Option<Kept>,
}

impl Call {
    /// Stores the message of the call, whose memory stays reserved.
    fn hold(&self, message: Kept) {
        self.0.lock().message = Some(message);
    }

    /// Frees the last message of a streaming call, because the call asks for the next one. Returns whether the call may receive
    /// another message that needs memory.
    fn goes_on(&self) -> bool {
        let mut held = self.0.lock();
        if held.answered {
            held.message = None;
        }
        held.message.is_none()
    }
}

/// Guard that frees the memory of a unary call's message, however the call ends.
struct UntilAnswered(Arc<Call>);

impl UntilAnswered {
    /// Ends the call. Returns the message of a call with a single response, which stays reserved until the response has been
    /// read.
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
