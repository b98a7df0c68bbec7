//! Page tokens: a position (`page_token`) and a keyed hash. The hash binds the token to the call, to the caller, and to all fields
//! of the request except the page size, so a token for one type's jobs is invalid for another type. The key is stored in the
//! database, so every broker of the database accepts the token.

use hmac::{Hmac, KeyInit as _, Mac as _};
use howdah_proto::v1;
use prost::Message;
use sha2::Sha256;

use super::page_token;
use crate::error::Error;

/// Length of the truncated hash, in bytes.
const HASH: usize = 16;

/// A paginated request.
pub(super) trait Paged: Message {
    /// Name of the call.
    const CALL: &'static str;

    /// Page token and page size; the page size may change from page to page.
    fn page(&mut self) -> (&mut String, Option<&mut i32>);
}

macro_rules! paged {
    ($($request:ident = $call:literal $(, $size:ident)?;)*) => {
        $(impl Paged for v1::$request {
            const CALL: &'static str = $call;

            fn page(&mut self) -> (&mut String, Option<&mut i32>) {
                (&mut self.page_token, paged!(@size self $($size)?))
            }
        })*
    };
    (@size $self:ident) => { None };
    (@size $self:ident $size:ident) => { Some(&mut $self.$size) };
}

paged! {
    ListJobsRequest = "ListJobs", page_size;
    SearchJobsRequest = "SearchJobs", page_size;
    CancelJobsRequest = "CancelJobs";
    RetryJobsRequest = "RetryJobs";
    DiscardJobsRequest = "DiscardJobs";
    ReprioritizeJobsRequest = "ReprioritizeJobs";
    ListTaskTypesRequest = "ListTaskTypes", page_size;
    ListLimitKeysRequest = "ListLimitKeys", page_size;
    ListSchedulesRequest = "ListSchedules", page_size;
    ListTokensRequest = "ListTokens", page_size;
    ListAuditRequest = "ListAudit", page_size;
    ListWorkersRequest = "ListWorkers", page_size;
    ListBulksRequest = "ListBulks", page_size;
}

/// Signs the page tokens of one list.
pub(super) struct Pages(Hmac<Sha256>);

impl Pages {
    /// Verifies the token of a request and replaces it by the position. `principal` is empty for callers without one.
    pub(super) fn open<R: Paged>(key: &[u8], principal: &str, request: &mut R) -> Result<Self, Error> {
        let (token, size) = request.page();
        let (token, size) = (std::mem::take(token), size.map(std::mem::take));
        // HMAC accepts keys of any length, so this cannot fail.
        let mut mac = Hmac::new_from_slice(key).map_err(|error| Error::Internal(error.to_string()))?;
        for part in [R::CALL.as_bytes(), principal.as_bytes(), &request.encode_to_vec()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        let pages = Self(mac);
        let place = if token.is_empty() { token } else { pages.unseal(&token).ok_or_else(page_token::bad)? };
        let (token, asked) = request.page();
        *token = place;
        if let (Some(asked), Some(size)) = (asked, size) {
            *asked = size;
        }
        Ok(pages)
    }

    /// Signs the token of the next page; empty on the last page.
    pub(super) fn seal(&self, next: Option<String>) -> String {
        next.map(|place| {
            let hash = self.0.clone().chain_update(&place).finalize().into_bytes();
            format!("{place}{}", hex::encode(&hash[..HASH]))
        })
        .unwrap_or_default()
    }

    fn unseal(&self, token: &str) -> Option<String> {
        let (place, hash) = token.split_at_checked(token.len().checked_sub(2 * HASH)?)?;
        let mut bytes = [0; HASH];
        hex::decode_to_slice(hash, &mut bytes).ok()?;
        // Compares in constant time.
        self.0.clone().chain_update(place).verify_truncated_left(&bytes).ok()?;
        Some(place.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(task_type: &str, page_size: i32, page_token: &str) -> v1::ListJobsRequest {
        v1::ListJobsRequest {
            task_type: task_type.into(),
            page_size,
            page_token: page_token.into(),
            ..Default::default()
        }
    }

    /// Position in a request's token, if the token is valid for it.
    fn opened(key: &[u8], principal: &str, mut request: impl Paged) -> Option<String> {
        Pages::open(key, principal, &mut request).ok().map(|_| request.page().0.clone())
    }

    #[test]
    fn a_token_is_good_for_the_same_call_the_same_question_and_the_same_caller_only() {
        let sealed = Pages::open(b"key", "ann", &mut list("a", 10, "")).unwrap().seal(Some("01ff".into()));
        let good = || list("a", 99, &sealed);
        assert_eq!(opened(b"key", "ann", good()).as_deref(), Some("01ff"));
        for (key, principal, request) in [
            (b"yek", "ann", good()),
            (b"key", "bob", good()),
            (b"key", "", good()),
            (b"key", "ann", list("b", 10, &sealed)),
            (b"key", "ann", v1::ListJobsRequest { state: 1, ..good() }),
            (b"key", "ann", list("a", 10, &format!("02{}", &sealed[2..]))),
            (b"key", "ann", list("a", 10, &sealed[2..])),
            (b"key", "ann", list("a", 10, &sealed[..sealed.len() - 2])),
            (b"key", "ann", list("a", 10, "01ff")),
            (b"key", "ann", list("a", 10, &"é".repeat(20))),
        ] {
            assert_eq!(opened(key, principal, request), None);
        }
        let other = v1::ListLimitKeysRequest { task_type: "a".into(), page_token: sealed, ..Default::default() };
        assert_eq!(opened(b"key", "ann", other), None);
        assert_eq!(opened(b"key", "ann", list("a", 10, "")).as_deref(), Some(""));
    }
}
