//! A connection that is closed if the peer does not read for some time while data is pending.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Maximum time for which a write may be blocked because the peer does not read.
pub(crate) const WRITE_WITHIN: Duration = Duration::from_secs(30);

/// A connection with a write deadline.
#[derive(Debug)]
pub(super) struct WriteWithin<S> {
    stream: S,
    within: Duration,
    /// Deadline of the pending write. `None` if no write is pending.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteWithin<S> {
    pub(super) fn new(stream: S, within: Duration) -> Self {
        Self { stream, within, deadline: None }
    }

    /// Starts the deadline when a write is pending, and fails if the deadline has passed.
    fn check<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let within = self.within;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(within)));
        if deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read the response")));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteWithin<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteWithin<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_response_that_the_client_does_not_read_ends_and_a_slowly_read_one_does_not() {
        let (ours, mut theirs) = duplex(10);
        let mut stream = WriteWithin::new(ours, Duration::from_hours(1));
        // Each byte that the peer reads restarts the time limit.
        stream.write_all(&[7; 10]).await.unwrap();
        for _ in 0..3 {
            assert!(stream.write(&[7]).now_or_never().is_none() && stream.deadline.is_some());
            theirs.read_exact(&mut [0]).await.unwrap();
            assert_eq!(stream.write(&[7]).await.unwrap(), 1);
            assert!(stream.deadline.is_none());
        }
        stream.within = Duration::from_secs(10);
        let error = stream.write_all(&[7; 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
