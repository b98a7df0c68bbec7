//! Guards every call: catches panics, enforces the time limit, and rejects requests that are not gRPC.
//!
//! A browser sends a request of any type on behalf of a web page. To block such requests, a request must have a gRPC content
//! type, and none of the headers by which browsers mark their requests.
//!
//! hyper runs each call in its own task, so a panic ends neither the process nor the connection. Without this module the client
//! would see a reset stream; with it, the client gets an error. A panic inside a response stream still resets that stream.
//!
//! The time limit covers the whole call, including the request, so a request that never arrives ends too. It does not apply to
//! streams that have sent their headers. tonic's timeout is not used, because it answers CANCELLED, which means that the client
//! cancelled.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt as _;
use howdah_core::error::Error;
use tokio::time::timeout;
use tonic::{
    Status,
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE},
    },
};

use super::{answer::when_sent, peer::PeerInfo};
use crate::browser;

/// Response header with the id of the broker's database.
const DATABASE: HeaderName = HeaderName::from_static("howdah-database");

/// Outermost layer: ends calls that take too long, answers INTERNAL if a handler panics, and adds the id of the database to
/// every response. It also puts the client certificate into the request as `PeerIdentity`.
#[derive(Clone, Debug)]
pub(super) struct GuardCalls {
    /// Time limit of a call, until the headers of its response.
    pub(super) longest: Duration,
    /// Id of this broker's database.
    pub(super) database: Option<HeaderValue>,
}

impl<S> tower::Layer<S> for GuardCalls {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, longest: self.longest, database: self.database.clone() }
    }
}

/// Answers INTERNAL if the service panics, and `DEADLINE_EXCEEDED` if the call takes too long.
#[derive(Clone, Debug)]
pub(super) struct Guarded<S> {
    inner: S,
    longest: Duration,
    database: Option<HeaderValue>,
}

impl<S> Service<Request<Body>> for Guarded<S>
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

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Err(refusal) = is_grpc(request.headers()) {
            return Box::pin(async move { Ok(*refusal) });
        }
        let extensions = request.extensions_mut();
        if let Some(identity) = extensions.get::<PeerInfo>().and_then(|peer| peer.identity.clone()) {
            extensions.insert(identity);
        }
        let (path, longest) = (request.uri().path().to_owned(), self.longest);
        // `AssertUnwindSafe` is sound because the state of the call is dropped after a panic.
        let call = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        let database = self.database.clone();
        Box::pin(async move {
            let answer = match timeout(longest, call).await {
                Ok(Ok(answer)) => answer.map(when_sent),
                Ok(Err(panic)) => Ok(panicked(&path, &*panic)),
                Err(_) => {
                    let problem = format!("the call took longer than {longest:?}");
                    Ok(Status::from(Error::Deadline(problem)).into_http())
                }
            };
            answer.map(|mut answer| {
                if let Some(database) = database {
                    answer.headers_mut().insert(DATABASE, database);
                }
                answer
            })
        })
    }
}

/// Rejects a request that is not gRPC or that a browser sent.
fn is_grpc(headers: &HeaderMap) -> Result<(), Box<Response<Body>>> {
    if !headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        let mut refusal = Response::new(Body::empty());
        *refusal.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(refusal.into());
    }
    browser::refuse(headers).map_err(|error| Status::from(error).into_http().into())
}

fn panicked(path: &str, panic: &(dyn Any + Send)) -> Response<Body> {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(path, panic = text.unwrap_or("no text"), "a call panicked");
    let problem = "the broker failed unexpectedly; its log has the details";
    Status::from(Error::Internal(problem.into())).into_http()
}
