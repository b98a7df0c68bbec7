//! Who calls, by the certificate of the connection. Probes have none, and are answered without.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};

use super::places::Place;

/// Paths that anybody may ask for. They say no more than whether the broker works.
const OPEN: [&str; 3] = ["/", "/healthz", "/readyz"];

/// The routes, most of which need a certificate.
pub(super) fn required(router: Router) -> Router {
    router.layer(from_fn(check))
}

async fn check(request: Request, next: Next) -> Response {
    let place = request.extensions().get::<Arc<Place>>();
    if OPEN.contains(&request.uri().path()) || place.is_some_and(|place| place.identity.get().is_some()) {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "a client certificate is needed here, such as with curl --cert FILE --key FILE\n")
        .into_response()
}
