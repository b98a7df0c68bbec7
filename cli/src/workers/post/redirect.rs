//! The redirects that are followed: those that repeat the same request (307, 308), a few times, not from TLS to plain
//! text, and only to URLs that a first request could go to.
//!
//! The server that redirects chooses where the request goes. Another origin (scheme, host and port) gets the payload,
//! since the redirect asks for that, and neither the headers of the command line, which may be passwords, nor a
//! signature: it would say that we meant a request to that URL.

use std::net::IpAddr;

use reqwest::{StatusCode, Url, header::LOCATION};

use super::address::{is_public, refused};

/// The most redirects of a request.
const MOST: usize = 5;

/// Whether a request may be sent to this URL. Names are checked when they are looked up.
pub(super) fn check(url: &Url, allow_private: bool) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the scheme \"{}\" is not supported; use http or https", url.scheme()));
    }
    // An address in a URL is not looked up. In whatever form it was written, it is normalised by now.
    let host = url.host_str().unwrap_or_default();
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) if !allow_private && !is_public(address) => Err(refused(host, address).to_string()),
        _ => Ok(()),
    }
}

/// Where an answer sends the same request; `None`: nowhere, it is the last one.
pub(super) fn next(
    from: &Url,
    status: StatusCode,
    headers: &reqwest::header::HeaderMap,
    followed: usize,
    allow_private: bool,
) -> Result<Option<Url>, String> {
    // Other redirects would become a GET without the payload, and its success would count as the job's.
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
