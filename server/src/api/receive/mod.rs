//! Bounds the memory of all clients' large messages, from their first byte to the answer.
//!
//! The limit of a message bounds one message, but thousands of clients may send one at the same time. So a message that
//! is not small waits after its first bytes until there is memory for all of it. It keeps that memory until its call is
//! answered; on a stream, until the next message is asked for. Small messages pass as they come: only their length is
//! checked.
//!
//! No client can keep memory forever. A task of its own receives a message, with a time limit, also while its call is
//! not polled. A client that stops sending, or stops reading answers, only loses its own message. Memory is given in
//! the order of requests, for a whole message at once, and no call asks for more while it holds some. So calls never
//! wait for each other in a cycle.

mod arrival; // one large message and the task that receives it
mod body; // the body of a request: small messages pass, large ones arrive
pub(crate) mod budget; // the memory for large messages
pub(crate) mod frames; // the bounds of messages

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

use super::peer::PeerInfo;
use arrival::Arrival;
use body::ReceivedBody;
pub(super) use budget::{Budget, Patience};

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
        let (budget, until_answered) = (self.budget.clone(), UntilAnswered(call.clone()));
        let answer = self.inner.call(request.map(|body| Body::new(ReceivedBody::new(body, call, peer, budget))));
        Box::pin(async move {
            let _until_answered = until_answered;
            answer.await
        })
    }
}

/// The message that a call received last, with its memory.
#[derive(Debug, Default)]
struct Call(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// The answer, or its beginning, was sent. A call of one message is then done with it. A call that goes on takes a
    /// stream of messages, and has not asked for one yet.
    answered: bool,
    message: Option<Arrival>,
}

impl Call {
    /// Keeps the message's memory reserved.
    fn hold(&self, message: Arrival) {
        self.0.lock().message = Some(message);
    }

    /// The call asks for more: on a stream, it is done with the last message. Returns whether another large one may
    /// come.
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

impl Drop for UntilAnswered {
    fn drop(&mut self) {
        let mut held = self.0.0.lock();
        held.answered = true;
        held.message = None;
    }
}
