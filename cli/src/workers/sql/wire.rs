//! Runs simple queries on a socket. Passes on messages with columns, rows and command tags, one by one.

use std::io;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{login::Socket, problem::Problem};

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
    /// Row of the result.
    Row(Row),
    /// Command tag at the end of a statement.
    Command(String),
    /// The text contains no statement.
    Empty,
}

/// Values of a row, as text.
#[derive(Debug)]
pub(super) struct Row(Bytes);

/// Result of running an SQL text of one or more statements.
#[derive(Debug)]
pub(super) struct Finished {
    /// Error of the failed statement. The other statements were not run, or were rolled back.
    pub(super) problem: Option<Problem>,
    /// Client encoding that a statement set, if it is not UTF-8. Texts in this encoding cannot be read.
    pub(super) encoding: Option<String>,
}

/// Reason why a connection cannot be used any more.
#[derive(Debug)]
pub(super) enum Broken {
    /// The connection has ended, or the server sent an invalid message.
    Lost(io::Error),
    /// The server has ended the connection with this error.
    Ended(Box<Problem>),
    /// The server sent a message that exceeds the maximum size.
    TooLarge,
    /// The statement is a COPY to or from the client.
    Copy,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

/// Connection after the login.
pub(super) struct Wire {
    socket: Socket,
    /// Maximum size of a message of the server, in bytes.
    most: usize,
    state: State,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// A transaction is open.
    InTransaction,
    /// A query was begun, and its answer has not been read to its end.
    Busy,
}

impl Wire {
    pub(super) fn new(socket: Socket, most: usize) -> Self {
        Self { socket, most, state: State::Idle }
    }

    /// Runs a text of one or more statements, and passes on the messages of the server. Not cancel-safe: if the future is
    /// dropped, the connection cannot be used any more.
    pub(super) async fn query(
        &mut self,
        sql: &str,
        mut take: impl FnMut(Message) -> Result<(), Broken>,
    ) -> Result<Finished, Broken> {
        if self.state == State::Busy {
            return Err(Broken::Lost(senseless()));
        }
        self.state = State::Busy;
        self.send(sql).await?;
        let (mut problem, mut encoding): (Option<Problem>, Option<String>) = (None, None);
        loop {
            let (tag, mut body) = match (self.message().await, &problem) {
                (Ok(message), _) => message,
                (Err(Broken::Lost(_)), Some(why)) => return Err(Broken::Ended(Box::new(why.clone()))),
                (Err(broken), _) => return Err(broken),
            };
            match tag {
                b'T' => take(Message::Columns(columns(&mut body).ok_or_else(senseless)?))?,
                b'D' => take(Message::Row(Row::check(body).ok_or_else(senseless)?))?,
                b'C' => take(Message::Command(text(&mut body).ok_or_else(senseless)?))?,
                b'I' => take(Message::Empty)?,
                b'E' => problem = Some(Problem::read(&mut body).ok_or_else(senseless)?),
                // CopyInResponse, CopyOutResponse, CopyBothResponse: COPY FROM STDIN and COPY TO STDOUT are not supported.
                b'G' | b'H' | b'W' => return Err(Broken::Copy),
                b'Z' => {
                    self.state = if body.first() == Some(&b'I') { State::Idle } else { State::InTransaction };
                    return Ok(Finished { problem, encoding });
                }
                // ParameterStatus: a setting has changed, such as client_encoding.
                b'S' => encoding = other_encoding(&mut body).or(encoding),
                // NoticeResponse and NotificationResponse are ignored.
                b'N' | b'A' => {}
                _ => return Err(senseless().into()),
            }
        }
    }

    /// Returns whether a transaction is open.
    pub(super) fn in_transaction(&self) -> bool {
        self.state == State::InTransaction
    }

    async fn send(&mut self, sql: &str) -> io::Result<()> {
        let length = u32::try_from(sql.len() + 5).map_err(|_| io::ErrorKind::InvalidInput)?;
        let message = [b"Q".as_slice(), &length.to_be_bytes(), sql.as_bytes(), b"\0"].concat();
        self.socket.write_all(&message).await?;
        self.socket.flush().await
    }

    /// Reads the next message: its tag and its body.
    async fn message(&mut self) -> Result<(u8, Bytes), Broken> {
        let tag = self.socket.read_u8().await?;
        let length = self.socket.read_u32().await?.checked_sub(4).ok_or_else(senseless)? as usize;
        if length > self.most {
            return Err(Broken::TooLarge);
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
pub(super) fn text(body: &mut Bytes) -> Option<String> {
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

impl Row {
    fn check(mut body: Bytes) -> Option<Self> {
        let whole = body.clone();
        for _ in 0..body.try_get_u16().ok()? {
            let length = usize::try_from(body.try_get_i32().ok()?).unwrap_or(0);
            if length > body.len() {
                return None;
            }
            body.advance(length);
        }
        Some(Self(whole))
    }

    /// Returns the values of the row. `None` is null.
    pub(super) fn values(&self) -> impl Iterator<Item = Option<Bytes>> {
        let mut body = self.0.clone();
        let count = body.try_get_u16().unwrap_or_default();
        (0..count).map(move |_| {
            let length = usize::try_from(body.try_get_i32().ok()?).ok()?;
            Some(body.split_to(length.min(body.len())))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_of_a_server_make_us_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let body = Bytes::from(bytes);
            columns(&mut body.clone());
            Problem::read(&mut body.clone());
            other_encoding(&mut body.clone());
            if let Some(row) = Row::check(body) {
                row.values().for_each(drop);
            }
        }
    }

    #[test]
    fn a_row_knows_null_from_empty() {
        let row = Row::check(Bytes::from_static(b"\0\x03\0\0\0\x01a\xff\xff\xff\xff\0\0\0\0")).unwrap();
        let values: Vec<_> = row.values().collect();
        assert_eq!(values, [Some(Bytes::from_static(b"a")), None, Some(Bytes::new())]);
        assert!(Row::check(Bytes::from_static(b"\0\x01\0\0\0\x02a")).is_none());
    }

    #[tokio::test]
    async fn a_connection_whose_answer_was_not_read_is_not_used_again() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 10);
        let mut wire = Wire::new(super::super::login::socket(ours), 100);
        theirs.write_all(b"T\0\0\0\x06\0\0").await.unwrap();
        assert!(matches!(wire.query("SELECT", |_| Err(Broken::TooLarge)).await, Err(Broken::TooLarge)));
        assert!(matches!(wire.query("SELECT", |_| Ok(())).await, Err(Broken::Lost(_))));
    }

    #[tokio::test]
    async fn a_message_beyond_the_bound_is_not_read_at_all() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 10);
        let mut wire = Wire::new(super::super::login::socket(ours), 100);
        theirs.write_all(b"D\x40\0\0\0").await.unwrap();
        assert!(matches!(wire.query("SELECT", |_| Ok(())).await, Err(Broken::TooLarge)));
    }
}
