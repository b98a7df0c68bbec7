//! Page tokens: a position (`page_token`) and a keyed hash. The hash covers the name of the call, the caller, and all fields of
//! the request except the page size. So a token for the jobs of one task type is invalid for another. The hash key is stored in
//! the database, so all brokers of the database accept the token.

use hmac::{Hmac, KeyInit as _, Mac as _};
use howdah_core::error::Error;
use prost::Message as _;
use sha2::Sha256;

use super::Verb;
use crate::api::page_token;

/// Length of the truncated hash in a page token, in bytes.
const HASH: usize = 16;

/// Pagination fields of a request.
pub(crate) struct PageFields<'a> {
    /// Page token; empty for the first page.
    pub(super) token: &'a mut String,
    /// Page size: the maximum number of entries. It may change from page to page.
    pub(super) size: Option<&'a mut i32>,
}

/// Signs and verifies the page tokens of one list.
pub(super) struct Pages(Hmac<Sha256>);

impl Pages {
    /// Verifies the page token of a request, and replaces it with the position that it contains. Returns `None` if the verb is
    /// not paginated. `principal` is empty if the caller has none.
    pub(super) fn open<V: Verb>(key: &[u8], principal: &str, request: &mut V::Request) -> Result<Option<Self>, Error> {
        let Some(PageFields { token, size }) = V::page(request) else { return Ok(None) };
        let (token, size) = (std::mem::take(token), size.map(std::mem::take));
        // Cannot fail, because HMAC accepts keys of any length.
        let mut mac = Hmac::new_from_slice(key).map_err(|error| Error::Internal(error.to_string()))?;
        for part in [V::RPC.name().as_bytes(), principal.as_bytes(), &request.encode_to_vec()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        let pages = Self(mac);
        let place = if token.is_empty() { token } else { pages.unseal(&token).ok_or_else(page_token::bad)? };
        if let Some(fields) = V::page(request) {
            *fields.token = place;
            if let (Some(asked), Some(size)) = (fields.size, size) {
                *asked = size;
            }
        }
        Ok(Some(pages))
    }

    /// Appends the signature to the position of the next page. An empty text, which means that there is no next page, stays
    /// empty.
    pub(super) fn seal(&self, next: &mut String) {
        if !next.is_empty() {
            let hash = self.0.clone().chain_update(&*next).finalize().into_bytes();
            next.push_str(&hex::encode(&hash[..HASH]));
        }
    }

    fn unseal(&self, token: &str) -> Option<String> {
        let (place, hash) = token.split_at_checked(token.len().checked_sub(2 * HASH)?)?;
        let mut bytes = [0; HASH];
        hex::decode_to_slice(hash, &mut bytes).ok()?;
        // Compares the hashes in constant time.
        self.0.clone().chain_update(place).verify_truncated_left(&bytes).ok()?;
        Some(place.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use howdah_proto::v1;

    use super::*;
    use crate::api::verbs::{ListJobs, ListLimitKeys};

    fn list(task_type: &str, page_size: i32, page_token: &str) -> v1::ListJobsRequest {
        v1::ListJobsRequest {
            task_type: task_type.into(),
            page_size,
            page_token: page_token.into(),
            ..Default::default()
        }
    }

    /// Returns the position in a request's page token, if the token is valid for the request.
    fn opened<V: Verb>(key: &[u8], principal: &str, mut request: V::Request) -> Option<String> {
        Pages::open::<V>(key, principal, &mut request).ok()?;
        V::page(&mut request).map(|fields| fields.token.clone())
    }

    #[test]
    fn a_token_is_good_for_the_same_call_the_same_question_and_the_same_caller_only() {
        let pages = Pages::open::<ListJobs>(b"key", "ann", &mut list("a", 10, "")).unwrap().unwrap();
        let mut sealed = "01ff".to_owned();
        pages.seal(&mut sealed);
        let good = || list("a", 99, &sealed);
        assert_eq!(opened::<ListJobs>(b"key", "ann", good()).as_deref(), Some("01ff"));
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
            assert_eq!(opened::<ListJobs>(key, principal, request), None);
        }
        let other = v1::ListLimitKeysRequest { task_type: "a".into(), page_token: sealed, ..Default::default() };
        assert_eq!(opened::<ListLimitKeys>(b"key", "ann", other), None);
        assert_eq!(opened::<ListJobs>(b"key", "ann", list("a", 10, "")).as_deref(), Some(""));
    }
}
