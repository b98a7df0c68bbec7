//! What large messages of all clients may take in memory together, from their first byte to the answer.
//!
//! The limit of a message bounds one of them; thousands of clients may send one each at the same time.
//! So a message that is not small waits, behind its first bytes, until there is room for all of it, and
//! keeps that room until its call is answered; on a stream, until the next message is asked for. Small
//! messages pass as they come, and pay nothing but a look at their length.
//!
//! Nobody can keep room for ever. A message is received by a task of its own, against the clock, whether
//! or not its call is looked at meanwhile: who stops sending, or stops reading answers, only loses it.
//! Room is given in the order of asking, all of it at once, and nobody asks for more while holding some,
//! so those who wait never wait for each other.

mod arrival; // one message, received by a task of its own
mod body; // the body of a request: small messages pass, large ones arrive
pub(crate) mod budget; // the room there is
pub(crate) mod frames; // where messages begin and end

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

/// Puts the messages of every call under one budget.
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

/// What a call holds: the message that was received last, with its room.
#[derive(Debug, Default)]
struct Call(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// The answer, or its beginning, is there. A call of one message is done with it; one that goes on
    /// takes a stream of messages, and has asked for none of them yet.
    answered: bool,
    message: Option<Arrival>,
}

impl Call {
    /// Keeps the message's room.
    fn hold(&self, message: Arrival) {
        self.0.lock().message = Some(message);
    }

    /// More is asked for: on a stream, the last message is done with. Whether another large one may come.
    fn goes_on(&self) -> bool {
        let mut held = self.0.lock();
        if held.answered {
            held.message = None;
        }
        held.message.is_none()
    }
}

/// Gives the room of a call's one message back, however the call ends.
struct UntilAnswered(Arc<Call>);

impl Drop for UntilAnswered {
    fn drop(&mut self) {
        let mut held = self.0.0.lock();
        held.answered = true;
        held.message = None;
    }
}
