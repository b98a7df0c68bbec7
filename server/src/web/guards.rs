//! Checks of every request. The `Host` header must contain an IP address or a known name. This prevents DNS rebinding:
//! a web page whose host name resolves to the broker's address could otherwise send requests to the broker. Client
//! certificates are required, except on the paths for probes.

use std::{net::IpAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, Version, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};

use crate::web::slots::Slot;

/// Host names that the `Host` header of a request may contain, in addition to localhost.
pub(super) type Hosts = Arc<[String]>;

/// Rejects requests whose `Host` header contains an unknown name.
pub(super) async fn check_host(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    match host(request.version(), request.uri(), request.headers()) {
        Err(problem) => (StatusCode::BAD_REQUEST, format!("{problem}\n")).into_response(),
        Ok(Some(host)) if !is_known(&hosts, host) => {
            let problem = "this port does not accept the host name of this request: use an IP address, or allow the \
                           name with --http-host\n";
            (StatusCode::FORBIDDEN, problem).into_response()
        }
        Ok(_) => next.run(request).await,
    }
}

/// Host and port that a request names; `None` for an HTTP/1.0 request that names none.
fn host<'a>(version: Version, uri: &'a Uri, headers: &'a HeaderMap) -> Result<Option<&'a str>, &'static str> {
    let mut given = headers.get_all(header::HOST).iter();
    let host = match (given.next(), given.next()) {
        (Some(_), Some(_)) => return Err("more than one Host header"),
        (Some(host), None) => Some(host.to_str().map_err(|_| "the Host header is not ASCII")?),
        (None, _) if version >= Version::HTTP_11 => return Err("the Host header is missing"),
        (None, _) => None,
    };
    // A request with an absolute URL has the host in the URL, which takes precedence over the header.
    Ok(uri.authority().map(axum::http::uri::Authority::as_str).or(host))
}

fn is_known(hosts: &[String], host: &str) -> bool {
    let name = without_port(host);
    if name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || hosts.contains(&name)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Paths that need no certificate. Their responses reveal only whether the broker works.
const OPEN: [&str; 3] = ["/", "/healthz", "/readyz"];

/// Adds the check for a client certificate to the routes.
pub(super) fn require_certificate(router: Router) -> Router {
    router.layer(from_fn(check_certificate))
}

/// Request extension that marks a request without a client certificate.
#[derive(Clone, Copy)]
pub(super) struct Stranger;

async fn check_certificate(mut request: Request, next: Next) -> Response {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_known_and_other_names_only_if_they_were_given() {
        let hosts = ["broker.example".to_owned()];
        for known in [
            "127.0.0.1",
            "127.0.0.1:7433",
            "10.1.2.3:80",
            "[::1]:7433",
            "[::1]",
            "localhost",
            "LOCALHOST:1",
            "a.localhost",
            "broker.example:7433",
            "Broker.Example.",
        ] {
            assert!(is_known(&hosts, known), "{known}");
        }
        for unknown in [
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.example:7433",
            "127.0.0.1.evil",
            "broker",
            "a@127.0.0.1",
        ] {
            assert!(!is_known(&hosts, unknown), "{unknown}");
        }
    }

    #[test]
    fn a_request_has_one_host() {
        let headers = |hosts: &[&'static str]| {
            let hosts = hosts.iter().map(|host| (header::HOST, host.parse().unwrap()));
            let mut headers = HeaderMap::new();
            hosts.for_each(|(name, value): (_, axum::http::HeaderValue)| {
                headers.append(name, value);
            });
            headers
        };
        let path = Uri::from_static("/metrics");
        assert!(host(Version::HTTP_11, &path, &headers(&[])).is_err());
        assert!(host(Version::HTTP_11, &path, &headers(&["a", "a"])).is_err());
        assert_eq!(host(Version::HTTP_10, &path, &headers(&[])), Ok(None));
        assert_eq!(host(Version::HTTP_11, &path, &headers(&["a:1"])), Ok(Some("a:1")));
        let whole = Uri::from_static("http://evil.example/metrics");
        assert_eq!(host(Version::HTTP_11, &whole, &headers(&["127.0.0.1"])), Ok(Some("evil.example")));
    }
}
