//! Requests that a web page makes its visitor's browser send. They reach every port that the visitor reaches, loopback included, and
//! carry the visitor's client certificate; a page cannot forge or leave out the headers by which browsers mark them.

use axum::http::{HeaderMap, header};

use crate::error::Error;

/// Set by browsers on every request to a host that they trust with it (<https://www.w3.org/TR/fetch-metadata/>).
const FETCH_SITE: &str = "sec-fetch-site";

/// Refuses a request that a browser has sent: producers and workers are programs.
pub(crate) fn refuse(headers: &HeaderMap) -> Result<(), Error> {
    match [FETCH_SITE, header::ORIGIN.as_str()].into_iter().find(|name| headers.contains_key(*name)) {
        Some(name) => Err(Error::invalid(name, "is set by browsers; requests are not accepted from web pages")),
        None => Ok(()),
    }
}
