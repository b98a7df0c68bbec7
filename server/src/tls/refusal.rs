//! Tells rejected clients the reason in their own protocol. A broken connection would hide the cause, because few clients show TLS
//! alerts.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

/// First byte of every TLS connection: the record type of a handshake.
const HANDSHAKE_RECORD: u8 = 22;
/// Time for a rejected client to read the error before its connection is closed.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before an error is sent over HTTP/2. Clients report the error's text only to a call in progress; without a
/// call, they report only that the connection has ended.
const UNTIL_A_CALL: Duration = Duration::from_millis(100);
/// Maximum number of bytes read and discarded before a rejected connection is closed.
const READ_BYTES: u64 = 64 << 10;

/// Error text for clients that connect without TLS.
pub(super) const NEEDS_TLS: &str =
    "this port needs TLS: use https:// and, if a private authority has signed its certificate, the CA file (--tls-ca)";

/// Protocol of a client, recognized by the first bytes of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    Tls,
    /// HTTP/2 preface.
    Http2,
    /// HTTP/1 request.
    Http1,
    Other,
}

/// Waits for the first bytes of a connection without consuming them. Fails if the client has closed the connection.
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
    // The result is ignored: the connection is closed even if the client has not read the error.
    let _ = timeout(READ_TIMEOUT, read).await;
}

/// Returns HTTP/2 frames: empty `SETTINGS`, then `GOAWAY` with `INADEQUATE_SECURITY` and the text.
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
