//! Checks of audit queries and of the reason of a call.

use howdah_proto::v1;

use super::{numbers, text, time};
use crate::{access::PRINCIPAL_BYTES, api::page_token, error::Error, store::AuditQuery};

pub(crate) const PAGE: usize = 100;
/// Maximum page size. Generated clients accept messages of 4 MiB, and an entry has at most about 5 KiB.
pub(crate) const MAX_PAGE: usize = 500;
/// Maximum length of a reason, in bytes.
pub(crate) const REASON_BYTES: usize = 500;
/// Maximum length of an id in an entry; the longest id is a limit key.
const ID_BYTES: usize = 2_000;

/// Checks the reason of a call.
pub(crate) fn reason(field: &str, given: &str) -> Result<(), Error> {
    text::plain(field, given, REASON_BYTES)
}

/// Checks an audit query.
pub(crate) fn list_audit(request: v1::ListAuditRequest) -> Result<AuditQuery, Error> {
    let v1::ListAuditRequest { since, until, principal, method, id, page_size, page_token } = request;
    let us = |field, time: Option<prost_types::Timestamp>| time.map(|time| time::at(field, time)).transpose();
    Ok(AuditQuery {
        since_us: us("since", since)?,
        until_us: us("until", until)?,
        after: page_token::audit(&page_token)?,
        principal: text::optional("principal", principal, PRINCIPAL_BYTES)?,
        method: text::optional("method", method, PRINCIPAL_BYTES)?,
        id: text::optional("id", id, ID_BYTES)?,
        at_most: i32::try_from(numbers::page_size(page_size, PAGE, MAX_PAGE)?).unwrap_or(i32::MAX),
    })
}
