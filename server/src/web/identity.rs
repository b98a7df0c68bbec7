//! Who calls, by the certificate of the connection. Probes have none, and are answered without.

use axum::{
    Extension, Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};

use crate::tls::{PeerCertificate, PeerIdentity};

/// Paths that anybody may ask for. They say no more than whether the broker works.
const OPEN: [&str; 3] = ["/", "/healthz", "/readyz"];

/// The routes for a connection of this caller.
pub(super) fn noted(router: Router, client: Option<&PeerCertificate>) -> Router {
    match client {
        Some(client) => router.layer(Extension(client.identity.clone())),
        None => router,
    }
}

/// The routes, most of which need a certificate.
pub(super) fn required(router: Router) -> Router {
    router.layer(from_fn(check))
}

async fn check(request: Request, next: Next) -> Response {
    if OPEN.contains(&request.uri().path()) || PeerIdentity::of(request.extensions()).is_some() {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "a client certificate is needed here, such as with curl --cert FILE --key FILE\n")
        .into_response()
}
