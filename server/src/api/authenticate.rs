//! Authentication: checks the credential of each call before its message is read.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt as _};
use howdah_core::error::Error;
use howdah_engine::{
    access::{Caller, Rule},
    quota::OpenGuard,
};
use howdah_proto::Rpc;
use tonic::{
    Status,
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{self, HeaderValue, Response, header::AUTHORIZATION},
    },
};

use super::{
    peer::PeerInfo,
    verbs::{not_authenticated, rule},
};
use crate::credentials::{Authenticator, Peer, Refusal};

/// The health service needs no credential, because health probes have no credential. Its answers reveal no data.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Layer that adds the [`Caller`] to the extensions of each request, or rejects the call.
#[derive(Clone)]
pub(super) struct Authenticate(pub(super) Option<Arc<Authenticator>>);

impl<S> tower::Layer<S> for Authenticate {
    type Service = Authenticated<S>;

    fn layer(&self, inner: S) -> Authenticated<S> {
        Authenticated { inner, access: self.0.clone() }
    }
}

/// Service whose requests have a [`Caller`].
#[derive(Clone)]
pub(super) struct Authenticated<S> {
    inner: S,
    access: Option<Arc<Authenticator>>,
}

impl<S> Service<http::Request<Body>> for Authenticated<S>
where
    S: Service<http::Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Response<Body>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let Some(access) = self.access.clone().filter(|_| !request.uri().path().starts_with(HEALTH)) else {
            return Box::pin(self.inner.call(request));
        };
        // Calls the service that `poll_ready` was called on, and leaves a clone for the next request, as tower requires.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let (credential, rpc) = (request.headers().get(AUTHORIZATION).cloned(), Rpc::of_path(request.uri().path()));
        let peer = request.extensions().get::<PeerInfo>().cloned().unwrap_or_default();
        Box::pin(async move {
            let (caller, permitted) = authenticated(&access, credential, &peer, rpc.map(rule)).await;
            let permitted = match &caller {
                Some(caller) => permitted.and_then(|()| count_connection(&mut request, caller)),
                None => permitted,
            };
            let answer = match (&caller, permitted) {
                (Some(caller), Ok(())) => {
                    // Removes the credential, so that no later code can reveal it.
                    request.headers_mut().remove(AUTHORIZATION);
                    request.extensions_mut().insert(caller.clone());
                    inner.call(request).await
                }
                (_, permitted) => Ok(Status::from(permitted.err().unwrap_or_else(not_authenticated)).into_http()),
            };
            // The headers of the response contain the error of a unary call. `verbs::workers::work` records errors that end a
            // worker's stream later.
            if let Some(status) = answer.as_ref().ok().and_then(|answer| Status::from_header_map(answer.headers())) {
                access.refusals.note(&Refusal {
                    code: status.code(),
                    problem: status.message(),
                    principal: caller.as_ref().map(|caller| &**caller.principal()),
                    peer: peer.socket,
                    method: rpc.map(Rpc::name).unwrap_or_default(),
                });
            }
            answer
        })
    }
}

/// Authenticates the caller, and checks that it may make a call with this rule.
async fn authenticated(
    access: &Authenticator,
    credential: Option<HeaderValue>,
    peer: &PeerInfo,
    rule: Option<Rule>,
) -> (Option<Caller>, Result<(), Error>) {
    let from = Peer { address: peer.address.as_deref(), identity: peer.identity.as_ref() };
    match access.caller(credential.as_ref().map(HeaderValue::as_bytes), from).await {
        Ok(caller) => {
            let permitted = rule.map_or(Ok(()), |rule| caller.check_rule(rule));
            (Some(caller), permitted)
        }
        Err(error) => (None, Err(error)),
    }
}

/// From the first call of a principal on, counts the connection and its memory for the quotas of the principal.
fn count_connection(request: &mut http::Request<Body>, caller: &Caller) -> Result<(), Error> {
    let extensions = request.extensions_mut();
    if let (Some(principal), Some(peer)) = (caller.quota(), extensions.get::<PeerInfo>()) {
        let peer = peer.with_principal(principal)?;
        extensions.insert(peer);
    }
    Ok(())
}

/// Response stream that counts against the principal's stream limit until it is dropped.
pub(super) fn counted<T>(
    answers: impl Stream<Item = T> + Send + 'static,
    open: Option<OpenGuard>,
) -> Pin<Box<dyn Stream<Item = T> + Send>> {
    Box::pin(answers.map(move |answer| {
        let _ = &open;
        answer
    }))
}
