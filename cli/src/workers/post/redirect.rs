//! Rules for redirects. The worker follows only redirects that repeat the same request (307, 308), up to a maximum number. It never
//! follows a redirect from TLS to plain text, nor to a URL that is not allowed for a first request.
//!
//! The redirecting server chooses the target. Another origin (scheme, host and port) gets the payload, because the redirect asks
//! for that. It does not get the headers of the command line, which may contain credentials, nor a signature, which would confirm
//! that the request was meant for that URL.

use std::net::IpAddr;

use reqwest::{StatusCode, Url, header::LOCATION};

use super::address::{is_public, refused};

/// Maximum number of redirects of a request.
const MOST: usize = 5;

/// Checks that a request may be sent to this URL. The resolver checks host names later.
pub(super) fn check(url: &Url, allow_private: bool) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the scheme \"{}\" is not supported; use http or https", url.scheme()));
    }
    // An IP address in a URL bypasses the resolver. The URL parser has normalised it.
    let host = url.host_str().unwrap_or_default();
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) if !allow_private && !is_public(address) => Err(refused(host, address).to_string()),
        _ => Ok(()),
    }
}

/// Returns the target of a redirect; `None` if the answer is final.
pub(super) fn next(
    from: &Url,
    status: StatusCode,
    headers: &reqwest::header::HeaderMap,
    followed: usize,
    allow_private: bool,
) -> Result<Option<Url>, String> {
    // Other redirects would become a GET without the payload, whose success would count as success of the job.
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return Ok(None);
    }
    let location = headers.get(LOCATION).and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
    let Some(to) = location.and_then(|location| from.join(location).ok()) else { return Ok(None) };
    if followed == MOST {
        return Err(format!("more than {MOST} redirects"));
    }
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err("redirected from https to plain text, which is not followed".into());
    }
    check(&to, allow_private).map_err(|problem| format!("the redirect was refused: {problem}"))?;
    Ok(Some(to))
}
