//! A connection to a broker. Adds the credential to each call, logs incomplete responses, and converts HTTP errors of
//! proxies.

use http::{Response, StatusCode};
use tonic::{Code, Status, body::Body, service::interceptor::InterceptedService, transport::Channel};
use tonic_types::{ErrorDetails, StatusExt as _};
use tower::util::MapResponse;

use crate::Credential;

/// A connection to a broker. It adds the client's credential to each call. It logs which stores did not respond, because the
/// response is then incomplete.
pub type Connection = InterceptedService<Noted, Credential>;

/// A channel with a hook for responses.
type Noted = MapResponse<Channel, fn(Response<Body>) -> Response<Body>>;

/// Response header with the names of stores that did not respond in time.
const UNANSWERED: &str = "howdah-unanswered-stores";

pub(crate) fn connection(channel: Channel, credential: Credential) -> Connection {
    Connection::new(MapResponse::new(channel, check_response), credential)
}

/// Value of [`Error::reason`](crate::Error::reason) if a proxy refuses a request because of its size (HTTP 413).
pub(crate) const TOO_LARGE: &str = "REQUEST_TOO_LARGE";

fn check_response(answer: Response<Body>) -> Response<Body> {
    // A broker always responds with HTTP 200 and a gRPC status. So another HTTP status without a gRPC status comes from a
    // proxy.
    if answer.status() != StatusCode::OK && !answer.headers().contains_key(Status::GRPC_STATUS) {
        return proxy_status(answer.status()).into_http();
    }
    if let Some(stores) = answer.headers().get(UNANSWERED).and_then(|stores| stores.to_str().ok()) {
        tracing::warn!(
            stores,
            "these stores did not answer: the response lacks their data, and a change did not reach them"
        );
    }
    answer
}

/// Converts a proxy's HTTP status into a gRPC status, according to the gRPC specification.
fn proxy_status(status: StatusCode) -> Status {
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        let message = "a proxy between client and broker refuses a request of this size (HTTP 413): raise the proxy's limit \
                       (nginx: client_max_body_size), or send less at once";
        let details = ErrorDetails::with_error_info(TOO_LARGE, "howdah.dev", []);
        return Status::with_error_details(Code::ResourceExhausted, message, details);
    }
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        408 | 429 | 499 | 500..=599 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("HTTP {status}: the answer comes from a proxy or another server, not from a broker"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn http_statuses_of_a_proxy_become_errors_of_the_matching_kind() {
        let error = |status: u16| Error::from(proxy_status(StatusCode::from_u16(status).unwrap_or_default()));
        let too_large = error(413);
        assert!(too_large.is_too_large() && !too_large.is_retryable());
        assert!(too_large.to_string().contains("client_max_body_size"), "{too_large}");
        for temporary in [429, 500, 502, 503, 504] {
            assert!(error(temporary).is_retried(), "{temporary}");
            assert!(error(temporary).to_string().contains(&temporary.to_string()), "{temporary}");
        }
        for permanent in [401, 403, 404] {
            assert!(error(permanent).is_refusal(), "{permanent}");
        }
    }
}
