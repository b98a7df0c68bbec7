//! Error of the server for a statement.

use bytes::{Buf as _, Bytes};

use super::wire::text;

/// Maximum bytes of an error text.
const MOST: usize = 4 << 10;

/// Error of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Problem {
    /// SQLSTATE.
    pub(super) code: String,
    pub(super) message: String,
    detail: String,
    hint: String,
    context: String,
    /// Position in the SQL text, in characters from 1. 0: unknown.
    position: usize,
}

impl Problem {
    /// Parses the body of an error message, which has fields of a letter and a text.
    pub(super) fn read(body: &mut Bytes) -> Option<Self> {
        let mut problem = Self::default();
        loop {
            let field = body.try_get_u8().ok()?;
            if field == 0 {
                return Some(problem);
            }
            let value = text(body)?;
            match field {
                b'C' => problem.code = value,
                b'M' => problem.message = value,
                b'D' => problem.detail = value,
                b'H' => problem.hint = value,
                b'W' => problem.context = value,
                b'P' => problem.position = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
    }

    /// Formats the error. Shows only the position in the statement, because the statement may be confidential.
    pub(super) fn describe(&self, sql: &str) -> String {
        let mut text = format!("{} (SQLSTATE {})", self.message, self.code);
        if let Some((line, column)) = location(sql, self.position) {
            text = format!("{text} at line {line}, column {column}");
        }
        for (name, part) in [("DETAIL", &self.detail), ("HINT", &self.hint), ("CONTEXT", &self.context)] {
            if !part.is_empty() {
                text = format!("{text}\n{name}: {part}");
            }
        }
        cut(text)
    }

    /// Returns whether a retry of the same text would fail too: it is wrong, not allowed or not supported (42, 0A), or must not
    /// be in a transaction with other statements (25001).
    pub(super) fn is_final(&self) -> bool {
        ["42", "0A"].iter().any(|class| self.code.starts_with(class)) || self.code == "25001"
    }

    /// Returns whether the error is temporary, and independent of the text: connection, resources, shutdown, other transactions.
    pub(super) fn is_passing(&self) -> bool {
        let classes = ["08", "40", "53", "57P", "58"];
        classes.iter().any(|class| self.code.starts_with(class)) || ["25006", "55P03"].contains(&self.code.as_str())
    }

    /// Returns whether the statement was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.code == "57014"
    }
}

/// Converts a position to line and column, from 1.
fn location(sql: &str, position: usize) -> Option<(usize, usize)> {
    let before: String = sql.chars().take(position.checked_sub(1)?).collect();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    Some((line, column))
}

/// Shortens the text to the maximum size.
fn cut(mut text: String) -> String {
    if text.len() > MOST {
        text.truncate(text.floor_char_boundary(MOST));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(fields: &[u8]) -> Option<Problem> {
        Problem::read(&mut Bytes::copy_from_slice(fields))
    }

    #[test]
    fn an_error_says_where_it_is_and_what_to_do() {
        let problem = problem(b"SERROR\0C42703\0Mcolumn \"b\" does not exist\0Hlook\0P18\0\0").unwrap();
        let text = problem.describe("SELECT 1;\nSELECT b");
        assert_eq!(text, "column \"b\" does not exist (SQLSTATE 42703) at line 2, column 8\nHINT: look");
        assert!(problem.is_final() && !problem.is_passing());
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        assert_eq!(location("'ä' ö", 5), Some((1, 5)));
        assert_eq!(location("a", 0), None);
    }

    #[test]
    fn an_error_is_cut_between_characters_and_a_torn_one_is_none() {
        assert!(cut("ä".repeat(MOST)).len() <= MOST + 3);
        assert_eq!(problem(b"C42"), None);
    }
}
