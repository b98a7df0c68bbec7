//! Entry points for fuzzers.

use howdah_proto::v1;

pub(crate) use super::check_all as check_every_request;
use super::{ListJobs, pages::Pages};
use crate::api::page_token;

/// Checks that `text` without a signature is rejected as a page token, and is accepted with a valid signature. Decoding it as a
/// position must not panic.
pub(crate) fn open_page_token(text: &str) {
    let mut request = v1::ListJobsRequest { page_token: text.into(), ..Default::default() };
    let forged = Pages::open::<ListJobs>(b"key", "", &mut request).is_ok() && !text.is_empty();
    assert!(!forged, "a forged token was accepted: {text:?}");
    let _ = (page_token::position(text), page_token::name(text), page_token::limit_key(text));
    let _ = (page_token::schedule(text), page_token::search(text));
    let mut first = v1::ListJobsRequest::default();
    let mut token = text.to_owned();
    if let Ok(Some(pages)) = Pages::open::<ListJobs>(b"key", "", &mut first) {
        pages.seal(&mut token);
    }
    let mut next = v1::ListJobsRequest { page_token: token, ..Default::default() };
    assert!(
        Pages::open::<ListJobs>(b"key", "", &mut next).is_ok() && next.page_token == text,
        "a signed token was rejected: {text:?}"
    );
}
