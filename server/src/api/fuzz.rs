//! Entry points for fuzzers.

use howdah_proto::v1;

pub(crate) use super::check::every::check_all as check_every_request;
pub(crate) use super::receive::fuzz::receive;
use super::{page_token, pages::Pages};

/// Opens a page token, both signed and unsigned.
pub(crate) fn open_page_token(text: &str) {
    let mut request = v1::ListJobsRequest { page_token: text.into(), ..Default::default() };
    let forged = Pages::open(b"key", "", &mut request).is_ok() && !text.is_empty();
    assert!(!forged, "a forged token was accepted: {text:?}");
    let _ = (page_token::position(text), page_token::name(text), page_token::limit_key(text));
    let _ = (page_token::schedule(text), page_token::search(text));
    let mut first = v1::ListJobsRequest::default();
    let sealed = Pages::open(b"key", "", &mut first).map(|pages| pages.seal(Some(text.into()))).unwrap_or_default();
    let mut next = v1::ListJobsRequest { page_token: sealed, ..Default::default() };
    assert!(Pages::open(b"key", "", &mut next).is_ok() && next.page_token == text, "a signed token can be opened");
}
