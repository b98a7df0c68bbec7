//! Logs in with tokio-postgres (TLS, passwords, SCRAM, channel binding), and takes the socket back afterwards. The simple queries
//! of tokio-postgres report neither the types of columns, nor command tags, nor whether a transaction is open.

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio_postgres::{
    CancelToken, Config,
    tls::{ChannelBinding, TlsConnect, TlsStream},
};

/// Stream to a server, plain or TLS.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Boxed stream of any kind. The newtype hides the lifetime of the trait object, so that futures over it are `Send`.
pub(super) struct Stream(Box<dyn Io>);

/// Stream with a read buffer.
pub(super) type Socket = BufReader<Stream>;

/// Creates a socket from a stream.
pub(super) fn socket(stream: impl Io + 'static) -> Socket {
    BufReader::with_capacity(32 << 10, Stream(Box::new(stream)))
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Logs in. Returns the socket and the token that cancels its statements.
pub(super) async fn log_in<T>(socket: Socket, tls: T, config: &Config) -> Result<(Socket, CancelToken), AnyError>
where
    T: TlsConnect<Socket> + Send + 'static,
    T::Stream: Send + 'static,
    T::Future: Send + 'static,
{
    let lent = Lent(Arc::new(Mutex::new(Loan { socket: Some(socket), binding: None })));
    // The connection is dropped without being polled, because a polled connection would send a Terminate message and end the
    // session.
    let (client, _connection) = config.connect_raw(lent.clone(), LendTls(tls)).await?;
    Ok((lent.take()?, client.cancel_token()))
}

/// Error of any kind.
pub(super) type AnyError = Box<dyn Error + Send + Sync>;

/// Socket, plain or with TLS, that tokio-postgres uses for the login, and that `log_in` takes back afterwards.
#[derive(Clone)]
struct Lent(Arc<Mutex<Loan>>);

struct Loan {
    /// `None`: taken back.
    socket: Option<Socket>,
    /// Channel binding of TLS.
    binding: Option<ChannelBinding>,
}

impl Lent {
    fn take(&self) -> io::Result<Socket> {
        self.0.lock().socket.take().ok_or_else(not_connected)
    }

    fn with<T>(&self, act: impl FnOnce(Pin<&mut Socket>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match self.0.lock().socket.as_mut() {
            Some(socket) => act(Pin::new(socket)),
            None => Poll::Ready(Err(not_connected())),
        }
    }
}

fn not_connected() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection is gone")
}

impl AsyncRead for Lent {
    /// Reads one byte at a time, so that tokio-postgres cannot read a part of the next message, which would be lost. The socket
    /// is buffered.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.with(|socket| {
            let mut byte = [0];
            let mut one = ReadBuf::new(&mut byte);
            ready!(socket.poll_read(cx, &mut one))?;
            buf.put_slice(one.filled());
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for Lent {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|socket| socket.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|socket| socket.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|socket| socket.poll_shutdown(cx))
    }
}

impl TlsStream for Lent {
    fn channel_binding(&self) -> ChannelBinding {
        // tokio-postgres calls this method only once, so the value can be moved out.
        self.0.lock().binding.take().unwrap_or_else(ChannelBinding::none)
    }
}

/// TLS for a lent socket, which then is the TLS stream.
struct LendTls<T>(T);

impl<T> TlsConnect<Lent> for LendTls<T>
where
    T: TlsConnect<Socket> + Send + 'static,
    T::Stream: Send + 'static,
    T::Future: Send + 'static,
{
    type Stream = Lent;
    type Error = AnyError;
    type Future = BoxFuture<'static, Result<Lent, AnyError>>;

    fn connect(self, lent: Lent) -> Self::Future {
        Box::pin(async move {
            let stream = self.0.connect(lent.take()?).await.map_err(Into::into)?;
            let binding = Some(stream.channel_binding());
            *lent.0.lock() = Loan { socket: Some(socket(stream)), binding };
            Ok(lent)
        })
    }
}
