//! The id of a session, and how brokers tell each other that its worker went on at another one.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::wake::SessionMark;

/// Random bytes of a session's id: nobody guesses one.
const RANDOM_BYTES: usize = 16;
/// Hexadecimal digits of the random part, and of the turn.
const RANDOM_DIGITS: usize = 2 * RANDOM_BYTES;
const TURN_DIGITS: usize = 8;

/// What a worker resumes its session with. Each Welcome gives it the next turn, so that brokers know which of two streams
/// was the later one, whichever broker each was at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// The same for as long as the session lasts.
    pub(super) random: String,
    pub(super) turn: u32,
}

impl SessionId {
    /// The id of a new session, before its first Welcome: turn 0.
    pub(crate) fn new() -> Self {
        Self { random: hex::encode(rand::random::<[u8; RANDOM_BYTES]>()), turn: 0 }
    }

    /// Which turn it is of.
    pub(crate) fn turn(&self) -> u32 {
        self.turn
    }

    /// The same session at this turn.
    pub(crate) fn at_turn(&self, turn: u32) -> Self {
        Self { random: self.random.clone(), turn }
    }

    /// Reads what `Display` wrote; `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let (random, turn) = text.split_at_checked(RANDOM_DIGITS)?;
        if turn.len() != TURN_DIGITS || !is_hex(random) || !is_hex(turn) {
            return None;
        }
        Some(Self { random: random.to_owned(), turn: u32::from_str_radix(turn, 16).ok()? })
    }

    /// Names the session of a principal at this turn to brokers that know it, and tells nobody the id.
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
        write!(f, "{}{:0TURN_DIGITS$x}", self.random, self.turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written_and_nothing_else_is() {
        let id = SessionId { turn: 0x1f, ..SessionId::new() };
        let text = id.to_string();
        assert_eq!(SessionId::parse(&text), Some(id));
        for junk in
            ["", "0", &text[1..], &format!("{text}0"), &text.to_uppercase(), &"ü".repeat(20), &text.replace('0', "+")]
        {
            assert!(SessionId::parse(junk).is_none() || junk == text, "{junk}");
        }
    }

    #[test]
    fn a_mark_is_of_one_session_one_turn_and_one_principal() {
        let id = SessionId::new();
        let mark = id.mark("p");
        assert_eq!(mark, id.clone().mark("p"));
        assert_ne!(mark, id.mark("q"));
        assert_ne!(mark, SessionId { turn: 1, ..id }.mark("p"));
        assert_ne!(mark, SessionId::new().mark("p"));
    }
}
