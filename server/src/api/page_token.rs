//! Positions in lists, as URL-safe text: hex of a version byte, a kind byte and the position. `pages` signs the text to make a
//! page token.

use howdah_core::{
    error::Error,
    job::{JobState, PagePosition, SearchPosition, TaskTypeName, WorkerPosition},
};

const VERSION: u8 = 1;
const JOBS: u8 = b'j';
const TYPES: u8 = b't';
const SCHEDULES: u8 = b's';
const LIMIT_KEYS: u8 = b'l';
const TOKENS: u8 = b'c';
const AUDIT: u8 = b'a';
const WORKERS: u8 = b'w';
const BULKS: u8 = b'b';
const SEARCH: u8 = b'f';

/// Encodes a position in a list of jobs.
pub(super) fn encode(position: PagePosition) -> String {
    let mut bytes = vec![VERSION, JOBS, position.state.to_proto() as u8];
    bytes.extend(position.rank.to_be_bytes());
    bytes.extend(position.id.to_be_bytes());
    hex::encode(bytes)
}

/// Encodes a position in a search.
pub(super) fn encode_search(position: SearchPosition) -> String {
    let mut bytes = vec![VERSION, SEARCH, position.at.state.to_proto() as u8];
    for number in [position.at.rank, position.at.id, position.scanned_count, position.estimated] {
        bytes.extend(number.to_be_bytes());
    }
    hex::encode(bytes)
}

/// Encodes a position in a list of task types: the page starts after `name`.
pub(super) fn encode_name(name: &str) -> String {
    encode_text(TYPES, name)
}

/// Encodes a position in a list of schedules: the page starts after `name`.
pub(super) fn encode_schedule(name: &str) -> String {
    encode_text(SCHEDULES, name)
}

/// Encodes a position in a list of limit keys: the page starts after `key`.
pub(super) fn encode_limit_key(key: &str) -> String {
    encode_text(LIMIT_KEYS, key)
}

/// Encodes a position in a list of tokens: the page starts after `id`.
pub(super) fn encode_token_id(id: &str) -> String {
    encode_text(TOKENS, id)
}

/// Encodes a position in the audit log: the page starts after the entry with this time and id.
pub(super) fn encode_audit(time_us: i64, id: i64) -> String {
    let mut bytes = vec![VERSION, AUDIT];
    bytes.extend(time_us.to_be_bytes());
    bytes.extend(id.to_be_bytes());
    hex::encode(bytes)
}

/// Encodes a position in a list of workers.
pub(super) fn encode_worker(position: WorkerPosition) -> String {
    let mut bytes = vec![VERSION, WORKERS];
    bytes.extend(position.broker_id.to_be_bytes());
    bytes.extend(position.number.to_be_bytes());
    hex::encode(bytes)
}

/// Encodes a position in a list of bulk operations: the page starts before this id.
pub(super) fn encode_bulk(id: i64) -> String {
    encode_text(BULKS, &id.to_string())
}

fn encode_text(kind: u8, name: &str) -> String {
    let mut bytes = vec![VERSION, kind];
    bytes.extend(name.bytes());
    hex::encode(bytes)
}

/// Decodes a position in a list of jobs. `None` for the first page.
pub(super) fn position(token: &str) -> Result<Option<PagePosition>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    parse_position(token).map(Some).ok_or_else(bad)
}

/// Decodes a position in a search. `None` for the first page.
pub(super) fn search(token: &str) -> Result<Option<SearchPosition>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    parse_search(token).map(Some).ok_or_else(bad)
}

/// Decodes a position in a list of task types: the last name of the previous page, empty for the first page.
pub(super) fn name(token: &str) -> Result<String, Error> {
    if token.is_empty() {
        return Ok(String::new());
    }
    parse_name(TYPES, token).ok_or_else(bad)
}

/// Decodes a position in a list of limit keys: the last key of the previous page, empty for the first page.
pub(super) fn limit_key(token: &str) -> Result<String, Error> {
    if token.is_empty() {
        return Ok(String::new());
    }
    // Limit keys may contain any characters.
    parse_text(LIMIT_KEYS, token).ok_or_else(bad)
}

/// Decodes a position in a list of schedules: the last name of the previous page, empty for the first page.
pub(super) fn schedule(token: &str) -> Result<String, Error> {
    if token.is_empty() {
        return Ok(String::new());
    }
    // Names of schedules have the same characters as names of task types.
    parse_name(SCHEDULES, token).ok_or_else(bad)
}

/// Decodes a position in a list of tokens: the last id of the previous page, empty for the first page.
pub(super) fn token_id(token: &str) -> Result<String, Error> {
    if token.is_empty() {
        return Ok(String::new());
    }
    parse_name(TOKENS, token).ok_or_else(bad)
}

/// Decodes a position in the audit log: time and id of the last entry of the previous page. `None` for the first page.
pub(super) fn audit(token: &str) -> Result<Option<(i64, i64)>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    parse_audit(token).map(Some).ok_or_else(bad)
}

/// Decodes a position in a list of bulk operations: the last id of the previous page. `None` for the first page.
pub(super) fn bulk(token: &str) -> Result<Option<i64>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    parse_text(BULKS, token).and_then(|id| id.parse().ok()).map(Some).ok_or_else(bad)
}

/// Decodes a position in a list of workers. `None` for the first page.
pub(super) fn worker(token: &str) -> Result<Option<WorkerPosition>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    parse_worker(token).map(Some).ok_or_else(bad)
}

fn parse_search(token: &str) -> Option<SearchPosition> {
    let mut bytes = [0; 35];
    hex::decode_to_slice(token, &mut bytes).ok()?;
    let [VERSION, SEARCH, state, ref numbers @ ..] = bytes else {
        return None;
    };
    let mut numbers = numbers.as_chunks::<8>().0.iter().map(|number| i64::from_be_bytes(*number));
    let (rank, id, scanned_count, estimated) = (numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?);
    let at = PagePosition { state: JobState::from_proto(i32::from(state))?, rank, id };
    Some(SearchPosition { at, scanned_count, estimated })
}

fn parse_worker(token: &str) -> Option<WorkerPosition> {
    let mut bytes = [0; 14];
    hex::decode_to_slice(token, &mut bytes).ok()?;
    let [VERSION, WORKERS, ref numbers @ ..] = bytes else {
        return None;
    };
    let (broker_id, number) = numbers.split_first_chunk::<4>()?;
    let number = i64::from_be_bytes(number.try_into().ok()?);
    Some(WorkerPosition { broker_id: i32::from_be_bytes(*broker_id), number })
}

fn parse_audit(token: &str) -> Option<(i64, i64)> {
    let mut bytes = [0; 18];
    hex::decode_to_slice(token, &mut bytes).ok()?;
    let [VERSION, AUDIT, ref numbers @ ..] = bytes else {
        return None;
    };
    let (time, id) = numbers.split_first_chunk::<8>()?;
    Some((i64::from_be_bytes(*time), i64::from_be_bytes(id.try_into().ok()?)))
}

fn parse_position(token: &str) -> Option<PagePosition> {
    let mut bytes = [0; 19];
    hex::decode_to_slice(token, &mut bytes).ok()?;
    let [VERSION, JOBS, state, ref numbers @ ..] = bytes else {
        return None;
    };
    let (rank, id) = numbers.split_first_chunk::<8>()?;
    Some(PagePosition {
        state: JobState::from_proto(i32::from(state))?,
        rank: i64::from_be_bytes(*rank),
        id: i64::from_be_bytes(id.try_into().ok()?),
    })
}

fn parse_name(kind: u8, token: &str) -> Option<String> {
    if token.len() > 2 * (2 + TaskTypeName::MAX_BYTES) {
        return None;
    }
    parse_text(kind, token).filter(|name| TaskTypeName::parse(name).is_ok())
}

fn parse_text(kind: u8, token: &str) -> Option<String> {
    let bytes = hex::decode(token).ok()?;
    let [VERSION, found, text @ ..] = &bytes[..] else {
        return None;
    };
    (*found == kind).then(|| String::from_utf8(text.to_vec()).ok()).flatten()
}

pub(super) fn bad() -> Error {
    Error::invalid("page_token", "is not a next_page_token of this list; leave it empty for the first page")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_token_is_the_first_page() {
        assert_eq!(position("").unwrap(), None);
        assert_eq!(name("").unwrap(), "");
    }

    #[test]
    fn a_token_of_another_list_version_or_length_is_refused() {
        let jobs = encode(PagePosition { state: JobState::Ready, rank: -5, id: 7 });
        let types = encode_name("email.send");
        let other_version = format!("02{}", &jobs[2..]);
        let no_state = format!("{}00{}", &jobs[..4], &jobs[6..]);
        for token in [&types, &jobs[2..], &jobs[..36], &format!("{jobs}00"), &other_version, &no_state, "x", "é", "00"]
        {
            assert_eq!(position(token).unwrap_err().field(), Some("page_token"), "{token}");
        }
        for token in [&jobs, &types[2..], "0174", "01740a", "017400", &"01".repeat(1000), "../", "\0"] {
            assert_eq!(name(token).unwrap_err().field(), Some("page_token"), "{token}");
        }
    }

    proptest! {
        #[test]
        fn encoded_positions_decode_unchanged(state in 0..9_usize, rank: i64, id: i64, task_type in "[a-zA-Z0-9._:/-]{1,200}") {
            let there = PagePosition { state: JobState::ALL[state], rank, id };
            prop_assert_eq!(position(&encode(there)).unwrap(), Some(there));
            let search_there = SearchPosition { at: there, scanned_count: id, estimated: rank };
            prop_assert_eq!(search(&encode_search(search_there)).unwrap(), Some(search_there));
            let worker_there = WorkerPosition { broker_id: id as i32, number: rank };
            prop_assert_eq!(worker(&encode_worker(worker_there)).unwrap(), Some(worker_there));
            prop_assert_eq!(audit(&encode_audit(rank, id)).unwrap(), Some((rank, id)));
            prop_assert_eq!(bulk(&encode_bulk(id)).unwrap(), Some(id));
            prop_assert_eq!(name(&encode_name(&task_type)).unwrap(), task_type);
        }

        #[test]
        fn decoding_an_arbitrary_token_never_panics(token: String, bytes: Vec<u8>) {
            let _ = (position(&token), name(&token), position(&hex::encode(&bytes)), name(&hex::encode(&bytes)));
        }
    }
}
