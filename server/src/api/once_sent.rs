//! Calls a function when a response has been sent. If the response is dropped before, the function is not called.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::{Status, body::Body, codegen::http::Response};

/// Response extension: a function that is called when the last frame has been passed to the HTTP/2 connection.
#[derive(Clone)]
pub(super) struct OnceSent(Arc<dyn Fn() + Send + Sync>);

impl OnceSent {
    pub(super) fn new(sent: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(sent))
    }
}

/// Wraps the body of a response that has a callback, so that the callback runs at its end.
pub(super) fn watch(mut response: Response<Body>) -> Response<Body> {
    match response.extensions_mut().remove::<OnceSent>() {
        None => response,
        Some(sent) => response.map(|body| Body::new(Watched { body, sent })),
    }
}

struct Watched {
    body: Body,
    sent: OnceSent,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // The HTTP/2 connection polls for the trailers only when it has accepted all data before them.
        if frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers)) {
            (self.sent.0)();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
