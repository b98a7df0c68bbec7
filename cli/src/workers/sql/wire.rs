//! Runs simple queries on a socket. Passes on messages with columns, rows and command tags, one by one.

use std::io;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::login::Socket;

/// Maximum bytes of an error text.
const MAX_ERROR_BYTES: usize = 4 << 10;

/// Column of the following rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    /// Name of the column.
    pub(super) name: String,
    /// Id of the type, and its modifier, such as the length of a varchar.
    pub(super) type_id: (u32, i32),
}

/// Message of the server during statements.
#[derive(Debug)]
pub(super) enum Message {
    /// Rows with these columns follow.
    Columns(Vec<Column>),
    /// Values of a row, as text. `None` is null.
    Row(Vec<Option<Bytes>>),
    /// Command tag at the end of a statement.
    Command(String),
    /// The text contains no statement.
    Empty,
}

/// Reason why an SQL text has no result.
#[derive(Debug)]
pub(super) enum Stop {
    /// A statement failed. The other statements were not run, or were rolled back.
    Failed(Box<Problem>),
    /// A transaction was left open.
    Open,
    /// A statement set this client encoding instead of UTF-8. Texts in this encoding cannot be read.
    Encoding(String),
    /// The server sent a message, or a result, that exceeds the maximum size.
    TooLarge,
    /// The statement is a COPY to or from the client.
    Copy,
    /// The server has ended the connection with this error.
    Ended(Box<Problem>),
    /// The connection has ended, or the server sent an invalid message.
    Lost(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

impl Stop {
    /// Formats the reason. Errors address the author of the SQL text.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Failed(problem) | Self::Ended(problem) => problem.describe(""),
            Self::Open => {
                "the payload left a transaction open, which was rolled back: end it with COMMIT, or leave out \
                           BEGIN, since the statements of a payload are one transaction anyway"
                    .into()
            }
            Self::Encoding(encoding) => format!(
                "the payload set client_encoding to {encoding}, so its result cannot be read; its changes are committed. Leave \
                 client_encoding at UTF8"
            ),
            Self::TooLarge => "the server sent a message that exceeds the maximum size".into(),
            Self::Copy => "COPY FROM STDIN and COPY TO STDOUT are not supported; use INSERT and SELECT".into(),
            Self::Lost(error) => error.to_string(),
        }
    }
}

/// Error of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Problem {
    /// SQLSTATE.
    pub(super) code: String,
    message: String,
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
    if text.len() > MAX_ERROR_BYTES {
        text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
        text.push('…');
    }
    text
}

/// Connection after the login.
pub(super) struct Wire {
    socket: Socket,
    /// Maximum size of a message of the server, in bytes.
    max_message: usize,
    state: State,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// A transaction is open.
    InTransaction,
    /// A query was begun, and its answer has not been read to its end. The connection cannot be used any more.
    Busy,
}

impl Wire {
    pub(super) fn new(socket: Socket, max_message: usize) -> Self {
        Self { socket, max_message, state: State::Idle }
    }

    /// Runs a text of one or more statements, and passes on the messages of the server. Not cancel-safe: if the future is
    /// dropped, the connection cannot be used any more.
    pub(super) async fn query(
        &mut self,
        sql: &str,
        mut take: impl FnMut(Message) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if self.state == State::Busy {
            return Err(senseless().into());
        }
        self.state = State::Busy;
        self.send(sql).await?;
        let (mut problem, mut encoding): (Option<Box<Problem>>, Option<String>) = (None, None);
        loop {
            let (tag, mut body) = match self.message().await {
                Ok(message) => message,
                // The server sends its reason before it ends the connection.
                Err(Stop::Lost(error)) => return Err(problem.map_or(Stop::Lost(error), Stop::Ended)),
                Err(stop) => return Err(stop),
            };
            match tag {
                b'T' => take(Message::Columns(columns(&mut body).ok_or_else(senseless)?))?,
                b'D' => take(Message::Row(row(&mut body).ok_or_else(senseless)?))?,
                b'C' => take(Message::Command(text(&mut body).ok_or_else(senseless)?))?,
                b'I' => take(Message::Empty)?,
                b'E' => problem = Some(Problem::read(&mut body).ok_or_else(senseless)?.into()),
                // CopyInResponse, CopyOutResponse, CopyBothResponse: COPY FROM STDIN and COPY TO STDOUT are not supported.
                b'G' | b'H' | b'W' => return Err(Stop::Copy),
                b'Z' => {
                    self.state = if body.first() == Some(&b'I') { State::Idle } else { State::InTransaction };
                    return match (problem, self.state, encoding) {
                        (Some(problem), ..) => Err(Stop::Failed(problem)),
                        (None, State::InTransaction, _) => Err(Stop::Open),
                        (None, _, Some(encoding)) => Err(Stop::Encoding(encoding)),
                        (None, _, None) => Ok(()),
                    };
                }
                // ParameterStatus: a setting has changed, such as client_encoding.
                b'S' => encoding = other_encoding(&mut body).or(encoding),
                // NoticeResponse and NotificationResponse are ignored.
                b'N' | b'A' => {}
                _ => return Err(senseless().into()),
            }
        }
    }

    /// Runs one statement of the worker, and returns the first column of its rows, without nulls.
    pub(super) async fn column(&mut self, sql: &str) -> Result<Vec<String>, Stop> {
        let mut values = Vec::new();
        let take = |message| {
            if let Message::Row(row) = message {
                values
                    .extend(row.first().into_iter().flatten().map(|value| String::from_utf8_lossy(value).into_owned()));
            }
            Ok(())
        };
        self.query(sql, take).await?;
        Ok(values)
    }

    /// Resets the session. Fails if the connection cannot be used any more.
    pub(super) async fn reset(&mut self) -> Result<(), Stop> {
        if self.state == State::InTransaction {
            self.column("ROLLBACK").await?;
        }
        self.column("DISCARD ALL").await.map(drop)
    }

    async fn send(&mut self, sql: &str) -> io::Result<()> {
        let length = u32::try_from(sql.len() + 5).map_err(|_| io::ErrorKind::InvalidInput)?;
        let message = [b"Q".as_slice(), &length.to_be_bytes(), sql.as_bytes(), b"\0"].concat();
        self.socket.write_all(&message).await?;
        self.socket.flush().await
    }

    /// Reads the next message: its tag and its body.
    async fn message(&mut self) -> Result<(u8, Bytes), Stop> {
        let tag = self.socket.read_u8().await?;
        let length = self.socket.read_u32().await?.checked_sub(4).ok_or_else(senseless)? as usize;
        if length > self.max_message {
            return Err(Stop::TooLarge);
        }
        let mut body = vec![0; length];
        self.socket.read_exact(&mut body).await?;
        Ok((tag, body.into()))
    }

    /// Sends a Terminate message, which avoids an error in the server's log. Does not wait for an answer.
    pub(super) async fn close(mut self) {
        let _ = self.socket.write_all(b"X\0\0\0\x04").await;
        let _ = self.socket.shutdown().await;
    }
}

fn senseless() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server sent an invalid message")
}

/// Parses the name and value of a setting. Returns the client encoding, if it is not UTF-8.
fn other_encoding(body: &mut Bytes) -> Option<String> {
    let (name, value) = (text(body)?, text(body)?);
    (name == "client_encoding" && value != "UTF8").then_some(value)
}

/// Reads a text up to its NUL.
fn text(body: &mut Bytes) -> Option<String> {
    let end = body.iter().position(|byte| *byte == 0)?;
    let text = String::from_utf8_lossy(&body.split_to(end)).into_owned();
    body.advance(1);
    Some(text)
}

fn columns(body: &mut Bytes) -> Option<Vec<Column>> {
    let count = body.try_get_u16().ok()?;
    let column = |body: &mut Bytes| {
        let name = text(body)?;
        // Skips the object id of the table, and the column's number in it.
        body.try_get_u32().ok()?;
        body.try_get_u16().ok()?;
        let id = body.try_get_u32().ok()?;
        body.try_get_i16().ok()?;
        let modifier = body.try_get_i32().ok()?;
        body.try_get_u16().ok()?;
        Some(Column { name, type_id: (id, modifier) })
    };
    (0..count).map(|_| column(body)).collect()
}

fn row(body: &mut Bytes) -> Option<Vec<Option<Bytes>>> {
    let count = body.try_get_u16().ok()?;
    let value = |body: &mut Bytes| match usize::try_from(body.try_get_i32().ok()?) {
        Ok(length) if length > body.len() => None,
        Ok(length) => Some(Some(body.split_to(length))),
        // A negative length stands for null.
        Err(_) => Some(None),
    };
    (0..count).map(|_| value(body)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::login::socket, *};

    proptest! {
        #[test]
        fn no_bytes_of_a_server_make_us_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let body = Bytes::from(bytes);
            columns(&mut body.clone());
            Problem::read(&mut body.clone());
            other_encoding(&mut body.clone());
            row(&mut body.clone());
        }
    }

    #[test]
    fn a_row_knows_null_from_empty() {
        let values = row(&mut Bytes::from_static(b"\0\x03\0\0\0\x01a\xff\xff\xff\xff\0\0\0\0")).unwrap();
        assert_eq!(values, [Some(Bytes::from_static(b"a")), None, Some(Bytes::new())]);
        assert!(row(&mut Bytes::from_static(b"\0\x01\0\0\0\x02a")).is_none());
    }

    #[tokio::test]
    async fn a_connection_whose_answer_was_not_read_is_not_used_again() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 10);
        let mut wire = Wire::new(socket(ours), 100);
        theirs.write_all(b"T\0\0\0\x06\0\0").await.unwrap();
        assert!(matches!(wire.query("SELECT", |_| Err(Stop::TooLarge)).await, Err(Stop::TooLarge)));
        assert!(matches!(wire.query("SELECT", |_| Ok(())).await, Err(Stop::Lost(_))));
    }

    #[tokio::test]
    async fn a_message_beyond_the_bound_is_not_read_at_all() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 10);
        let mut wire = Wire::new(socket(ours), 100);
        theirs.write_all(b"D\x40\0\0\0").await.unwrap();
        assert!(matches!(wire.query("SELECT", |_| Ok(())).await, Err(Stop::TooLarge)));
    }

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
        assert!(cut("ä".repeat(MAX_ERROR_BYTES)).len() <= MAX_ERROR_BYTES + 3);
        assert_eq!(problem(b"C42"), None);
    }
}
