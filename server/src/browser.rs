//! Refuses requests that a web page causes its visitor's browser to send (CSRF). Such requests reach every port that
//! the visitor can reach, including loopback, and carry the visitor's client certificate. Browsers mark the requests
//! with headers that a page can neither forge nor omit.

use axum::http::{HeaderMap, header};
use howdah_core::error::Error;

/// Header that browsers set on every request to a trustworthy host (<https://www.w3.org/TR/fetch-metadata/>).
const FETCH_SITE: &str = "sec-fetch-site";

/// Refuses a request that a browser has sent. Producers and workers are not browsers.
pub(crate) fn refuse(headers: &HeaderMap) -> Result<(), Error> {
    match [FETCH_SITE, header::ORIGIN.as_str()].into_iter().find(|name| headers.contains_key(*name)) {
        Some(name) => Err(Error::invalid(name, "is set by browsers; requests are not accepted from web pages")),
        None => Ok(()),
    }
}
