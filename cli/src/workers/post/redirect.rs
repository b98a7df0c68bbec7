//! The redirects that are followed: those that repeat the same request (307, 308), a few times, not from TLS to plain
//! text, and only to URLs that a first request could go to.

use std::net::IpAddr;

use reqwest::{
    StatusCode, Url,
    redirect::{Attempt, Policy},
};

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

pub(super) fn policy(allow_private: bool) -> Policy {
    Policy::custom(move |attempt| {
        let same_request = matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        if !same_request {
            // Other redirects would become a GET without the payload, and its success would count as the job's.
            return attempt.stop();
        }
        match problem(&attempt, allow_private) {
            Some(problem) => attempt.error(problem),
            None => attempt.follow(),
        }
    })
}

fn problem(attempt: &Attempt<'_>, allow_private: bool) -> Option<String> {
    if attempt.previous().len() > MOST {
        return Some(format!("more than {MOST} redirects"));
    }
    if attempt.previous().last().is_some_and(|from| from.scheme() == "https") && attempt.url().scheme() != "https" {
        return Some("redirected from https to plain text, which is not followed".into());
    }
    check(attempt.url(), allow_private).err().map(|problem| format!("the redirect was refused: {problem}"))
}
