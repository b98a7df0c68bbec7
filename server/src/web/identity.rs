//! Requires client certificates on the HTTP port, except on the paths for probes.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};

use super::slots::Slot;

/// Paths that need no certificate. Their responses reveal only whether the broker works.
const OPEN: [&str; 3] = ["/", "/healthz", "/readyz"];

/// Adds the check for a client certificate to the routes.
pub(super) fn required(router: Router) -> Router {
    router.layer(from_fn(check))
}

/// Request extension that marks a request without a client certificate.
#[derive(Clone, Copy)]
pub(super) struct Stranger;

async fn check(mut request: Request, next: Next) -> Response {
    if request.extensions().get::<Arc<Slot>>().is_some_and(|slot| slot.identity.get().is_some()) {
        return next.run(request).await;
    }
    if OPEN.contains(&request.uri().path()) {
        request.extensions_mut().insert(Stranger);
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "a client certificate is required here, for example curl --cert FILE --key FILE\n")
        .into_response()
}
