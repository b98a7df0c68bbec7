//! Which redirects are followed: those that send the same request again (307, 308), a few times, not from TLS
//! to plain text, and to where a first request could have gone.

use std::net::IpAddr;

use reqwest::{
    StatusCode, Url,
    redirect::{Attempt, Policy},
};

use super::address::{is_public, refused};

/// One after the other.
const MOST: usize = 5;

/// Whether a request may be sent there at all. Names are checked when they are looked up.
pub(super) fn check(url: &Url, allow_private: bool) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("\"{}\" is no scheme for this; http and https are", url.scheme()));
    }
    // An address in a URL is not looked up. However it was written, it is a plain one by now.
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
            // The others would become a GET without the payload, and its success would count as the job's.
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
    check(attempt.url(), allow_private).err().map(|problem| format!("redirected, and refused: {problem}"))
}
