//! Page tokens: a position in a list, as URL-safe text, and a keyed hash. The hash covers the name of the call, the caller, and
//! all fields of the request except the page size. So a token is valid only for the list that issued it, and a position need
//! not name its list. The hash key is stored in the database, so all brokers of the database accept the token.

use hmac::{Hmac, KeyInit as _, Mac as _};
use howdah_core::{
    error::Error,
    job::{JobState, PagePosition},
};
use prost::Message as _;
use sha2::Sha256;

use super::Verb;

/// Version of the format of positions.
const VERSION: &[u8] = b"2";
/// Length of the truncated hash in a page token, in bytes.
const HASH: usize = 16;

/// Encodes a position that consists of numbers.
pub(in crate::api) fn encode<const N: usize>(position: [i64; N]) -> String {
    position.map(|number| number.to_string()).join(".")
}

/// Decodes a position that consists of numbers. `None` for the first page.
pub(in crate::api) fn numbers<const N: usize>(token: &str) -> Result<Option<[i64; N]>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let numbers: Option<Vec<i64>> = token.split('.').map(|number| number.parse().ok()).collect();
    numbers.and_then(|numbers| numbers.try_into().ok()).map(Some).ok_or_else(bad)
}

/// Encodes a position that is the name of the last entry of the previous page.
pub(in crate::api) fn encode_name(name: &str) -> String {
    hex::encode(name)
}

/// Decodes the name of the last entry of the previous page. Empty for the first page.
pub(in crate::api) fn name(token: &str) -> Result<String, Error> {
    hex::decode(token).ok().and_then(|name| String::from_utf8(name).ok()).ok_or_else(bad)
}

/// Encodes a position in a list of jobs.
pub(in crate::api) fn encode_job(position: PagePosition) -> String {
    encode(job_numbers(position))
}

/// Decodes a position in a list of jobs. `None` for the first page.
pub(in crate::api) fn job(token: &str) -> Result<Option<PagePosition>, Error> {
    numbers(token)?.map(job_of_numbers).transpose()
}

/// Returns the numbers of a position in a list of jobs.
pub(super) fn job_numbers(position: PagePosition) -> [i64; 3] {
    [position.state.to_proto() as i64, position.rank, position.id]
}

/// Returns the position in a list of jobs with these numbers.
pub(super) fn job_of_numbers([state, rank, id]: [i64; 3]) -> Result<PagePosition, Error> {
    let state = i32::try_from(state).ok().and_then(JobState::from_proto).ok_or_else(bad)?;
    Ok(PagePosition { state, rank, id })
}

pub(in crate::api) fn bad() -> Error {
    Error::invalid("page_token", "is not a next_page_token of this list; leave it empty for the first page")
}

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
        for part in [VERSION, V::RPC.name().as_bytes(), principal.as_bytes(), &request.encode_to_vec()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        let pages = Self(mac);
        let place = if token.is_empty() { token } else { pages.unseal(&token).ok_or_else(bad)? };
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

/// Checks that `text` without a signature is rejected as a page token, and is accepted with a valid signature. Decoding it as a
/// position must not panic.
#[cfg(feature = "fuzzing")]
pub(crate) fn open_page_token(text: &str) {
    use crate::api::verbs::ListJobs;
    use howdah_proto::v1::ListJobsRequest;

    let mut request = ListJobsRequest { page_token: text.into(), ..Default::default() };
    let forged = Pages::open::<ListJobs>(b"key", "", &mut request).is_ok() && !text.is_empty();
    assert!(!forged, "a forged token was accepted: {text:?}");
    let _ = (job(text), name(text), numbers::<5>(text));
    let mut first = ListJobsRequest::default();
    let mut token = text.to_owned();
    if let Ok(Some(pages)) = Pages::open::<ListJobs>(b"key", "", &mut first) {
        pages.seal(&mut token);
    }
    let mut next = ListJobsRequest { page_token: token, ..Default::default() };
    assert!(
        Pages::open::<ListJobs>(b"key", "", &mut next).is_ok() && next.page_token == text,
        "a signed token was rejected: {text:?}"
    );
}

#[cfg(test)]
mod tests {
    use howdah_proto::v1;
    use proptest::prelude::*;

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

    #[test]
    fn an_empty_token_is_the_first_page() {
        assert_eq!(job("").unwrap(), None);
        assert_eq!(name("").unwrap(), "");
    }

    #[test]
    fn a_position_with_other_numbers_or_without_a_known_state_is_refused() {
        for token in ["1.2", "1.2.3.4", "0.1.2", "99.1.2", "1.x.2", "1..2", "x", "é", "\0"] {
            assert_eq!(job(token).unwrap_err().field(), Some("page_token"), "{token}");
        }
        for token in ["7", "ff", "../", "\0"] {
            assert_eq!(name(token).unwrap_err().field(), Some("page_token"), "{token}");
        }
    }

    proptest! {
        #[test]
        fn encoded_positions_decode_unchanged(state in 0..9_usize, rank: i64, id: i64, text: String) {
            let there = PagePosition { state: JobState::ALL[state], rank, id };
            prop_assert_eq!(job(&encode_job(there)).unwrap(), Some(there));
            prop_assert_eq!(numbers(&encode([id])).unwrap(), Some([id]));
            prop_assert_eq!(name(&encode_name(&text)).unwrap(), text);
        }

        #[test]
        fn decoding_an_arbitrary_token_never_panics(token: String, bytes: Vec<u8>) {
            let _ = (job(&token), name(&token), job(&hex::encode(&bytes)), name(&hex::encode(&bytes)));
        }
    }
}
