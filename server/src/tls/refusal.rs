//! Tells rejected clients the reason in their own protocol. A broken connection would hide the cause, because few clients show TLS
//! alerts.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

/// First byte of every TLS connection: a handshake record.
const HANDSHAKE_RECORD: u8 = 22;
/// Time for a rejected client to read the error before its connection is closed.
const TO_READ_IT: Duration = Duration::from_secs(1);
/// Delay before the error is sent over HTTP/2. Clients report its text only for a call in progress; without a call,
/// they report only that the connection has ended.
const UNTIL_A_CALL: Duration = Duration::from_millis(100);
/// Maximum number of bytes read from a client before the connection is closed.
const READ_BYTES: u64 = 64 << 10;

/// Error for clients without TLS.
pub(super) const NEEDS_TLS: &str =
    "this port needs TLS: use https:// and, if its certificate is your own, the CA file (--tls-ca)";

/// First bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    Tls,
    /// HTTP/2 preface.
    Http2,
    /// HTTP/1 request.
    Http1,
    Other,
}

/// Waits for the first bytes without consuming them. Fails if the client has closed the connection.
pub(super) async fn begin(stream: &TcpStream) -> io::Result<Begin> {
    let mut bytes = [0; 4];
    let read = stream.peek(&mut bytes).await?;
    match &bytes[..read] {
        [] => Err(io::ErrorKind::UnexpectedEof.into()),
        [HANDSHAKE_RECORD, ..] => Ok(Begin::Tls),
        [b'P', b'R', ..] => Ok(Begin::Http2),
        [b'A'..=b'Z', ..] => Ok(Begin::Http1),
        _ => Ok(Begin::Other),
    }
}

/// Sends the error in the client's protocol, and closes the connection.
pub(super) async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, speaks: Begin, words: &str) {
    let answer = match speaks {
        Begin::Http2 => {
            sleep(UNTIL_A_CALL).await;
            goaway(words)
        }
        Begin::Http1 => format!(
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n\
             {words}\n",
            words.len() + 1
        )
        .into_bytes(),
        Begin::Tls | Begin::Other => return,
    };
    if stream.write_all(&answer).await.is_ok() {
        close(stream).await;
    }
}

/// Closes a connection so that the client can read the last data. Unread bytes would turn the close into a reset, and the client
/// would lose the data.
pub(super) async fn close<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let read = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(READ_BYTES), &mut tokio::io::sink()).await
    };
    // Ignores the result: a client that does not read cannot be helped.
    let _ = timeout(TO_READ_IT, read).await;
}

/// HTTP/2: empty settings, then `GOAWAY` with `INADEQUATE_SECURITY` and a text.
fn goaway(words: &str) -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const INADEQUATE_SECURITY: u32 = 12;
    let length = (8 + words.len()) as u32;
    let mut frames = SETTINGS.to_vec();
    frames.extend_from_slice(&length.to_be_bytes()[1..]);
    frames.extend_from_slice(&[7, 0, 0, 0, 0, 0]);
    frames.extend_from_slice(&0_u32.to_be_bytes());
    frames.extend_from_slice(&INADEQUATE_SECURITY.to_be_bytes());
    frames.extend_from_slice(words.as_bytes());
    frames
}
