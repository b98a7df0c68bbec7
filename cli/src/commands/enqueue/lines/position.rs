//! Positions of `--resume`, at which `--lines` continues after an interruption.

use std::{fmt, str::FromStr};

/// Number of the first line to send. If an earlier request got no answer, also contains its last line and its request key: the
/// repeated request is identical, so the broker stores its lines once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct Position {
    pub(super) first: u64,
    pub(super) request: Option<Request>,
}

/// Last line and request key of a request without an answer, which may have been stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) last: u64,
    pub(super) key: String,
}

impl Position {
    pub(super) const fn line(first: u64) -> Self {
        Self { first, request: None }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            None => write!(f, "{}", self.first),
            Some(Request { last, key }) => write!(f, "{}-{last}:{key}", self.first),
        }
    }
}

impl FromStr for Position {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "use the number of a line, or the position that an earlier run printed: FIRST-LAST:KEY";
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0).ok_or(WRONG);
        let Some((lines, key)) = text.split_once(':') else {
            return Ok(Self::line(number(text)?));
        };
        let (first, last) = lines.split_once('-').ok_or(WRONG)?;
        let (first, last) = (number(first)?, number(last)?);
        if last < first || key.is_empty() {
            return Err(WRONG);
        }
        Ok(Self { first, request: Some(Request { last, key: key.to_owned() }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_printed() {
        for text in ["1", "401", "401-900:0199"] {
            assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
        }
        for text in ["", "0", "-1", "x", "5-4:k", "5-6", "5-6:", "0-6:k"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
