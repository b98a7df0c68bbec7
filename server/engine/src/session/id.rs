//! Session ids, and the marks by which brokers recognize a session that was resumed at another broker.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::wake::SessionMark;

/// Number of random bytes in a session id: enough to make guessing infeasible.
const RANDOM_BYTES: usize = 16;
/// Number of hexadecimal digits of the random part of a session id.
const RANDOM_DIGITS: usize = 2 * RANDOM_BYTES;
/// Number of hexadecimal digits of the generation in a session id.
const GENERATION_DIGITS: usize = 8;

/// Id with which a worker resumes its session. Each `Welcome` carries the next generation, so that brokers know which
/// of two streams is the later one, even if different brokers serve them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// Random part of the id, constant while the session lasts.
    pub(super) random: String,
    pub(super) generation: u32,
}

impl SessionId {
    /// Creates the id of a new session with generation 0, before its first `Welcome`.
    pub fn random() -> Self {
        Self { random: hex::encode(rand::random::<[u8; RANDOM_BYTES]>()), generation: 0 }
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the id of the same session with this generation.
    #[must_use]
    pub fn at_generation(&self, generation: u32) -> Self {
        Self { random: self.random.clone(), generation }
    }

    /// Parses the output of `Display`; `None` if the text is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let (random, generation) = text.split_at_checked(RANDOM_DIGITS)?;
        if generation.len() != GENERATION_DIGITS || !is_hex(random) || !is_hex(generation) {
            return None;
        }
        Some(Self { random: random.to_owned(), generation: u32::from_str_radix(generation, 16).ok()? })
    }

    /// Returns the mark of a principal's session at this generation: a hash. Brokers that know the session recognize
    /// the mark, which does not reveal the id.
    pub(super) fn mark(&self, principal: &str) -> SessionMark {
        let mut digest = Sha256::new();
        digest.update(self.to_string());
        digest.update(principal);
        let mut mark = SessionMark::default();
        mark.copy_from_slice(&digest.finalize()[..size_of::<SessionMark>()]);
        mark
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:0GENERATION_DIGITS$x}", self.random, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written_and_nothing_else_is() {
        let id = SessionId { generation: 0x1f, ..SessionId::random() };
        let text = id.to_string();
        assert_eq!(SessionId::parse(&text), Some(id));
        for junk in
            ["", "0", &text[1..], &format!("{text}0"), &text.to_uppercase(), &"ü".repeat(20), &text.replace('0', "+")]
        {
            assert!(SessionId::parse(junk).is_none() || junk == text, "{junk}");
        }
    }

    #[test]
    fn a_mark_is_of_one_session_one_generation_and_one_principal() {
        let id = SessionId::random();
        let mark = id.mark("p");
        assert_eq!(mark, id.clone().mark("p"));
        assert_ne!(mark, id.mark("q"));
        assert_ne!(mark, SessionId { generation: 1, ..id }.mark("p"));
        assert_ne!(mark, SessionId::random().mark("p"));
    }
}
