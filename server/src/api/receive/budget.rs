//! The memory for messages: one part for large ones, one for small ones, each shared by all connections.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures::poll;
use tokio::time::timeout;

use crate::{
    api::{
        peer::PeerInfo,
        server::{CONNECTION_WINDOW, STREAM_WINDOW},
    },
    error::Error,
    job::Limits,
    memory::{Full, Held, Memory},
};

/// The bytes that may stay unread of one connection's messages while they wait for memory: half of its window. With
/// more, they would block messages of the same connection that have memory.
pub(crate) const WAITING_PER_CONNECTION: usize = CONNECTION_WINDOW as usize / 2;

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until memory is free.
    pub(crate) room: Duration,
    /// For a message to arrive, without the time that it waits for memory.
    pub(crate) message: Duration,
    /// In addition, for each MiB of it.
    pub(crate) mib: Duration,
    /// For a message that has arrived on a stream that does not ask for the next one.
    pub(crate) held: Duration,
    /// For a request of one message to end after it.
    pub(crate) end: Duration,
    /// For an answer to be taken.
    pub(crate) answer: Duration,
}

/// The memory for messages.
#[derive(Debug)]
pub(in crate::api) struct Budget {
    pub(in crate::api) large: Arc<Memory>,
    pub(in crate::api) small: Arc<Memory>,
    /// Bytes that are unread while their messages wait for memory.
    unread: AtomicUsize,
    /// The largest message.
    pub(super) message_bytes: usize,
    pub(super) patience: Patience,
}

impl Budget {
    pub(in crate::api) fn new(limits: &Limits, patience: Patience) -> Self {
        Self {
            large: Memory::new(limits.received_bytes),
            small: Memory::new(limits.received_bytes),
            unread: AtomicUsize::new(0),
            message_bytes: limits.message_bytes,
            patience,
        }
    }

    /// Lets a large message begin. Its memory is taken as it arrives.
    pub(super) async fn begin(&self, wire: usize, peer: &PeerInfo) -> Result<Held, Error> {
        self.wait(self.large.begin(&peer.accounts.large, wire), wire, peer).await
    }

    /// More of a large message, of which so many bytes are still to come.
    pub(super) async fn grow(
        &self,
        held: &mut Held,
        bytes: usize,
        (missing, peer): (usize, &PeerInfo),
    ) -> Result<(), Error> {
        self.wait(held.grow(bytes), missing, peer).await
    }

    /// Waits for memory for a message of which so many bytes are not read yet.
    async fn wait<T>(
        &self,
        memory: impl Future<Output = Result<T, Full>>,
        missing: usize,
        peer: &PeerInfo,
    ) -> Result<T, Error> {
        let mut memory = pin!(memory);
        if let Poll::Ready(taken) = poll!(&mut memory) {
            return taken.map_err(|_| Self::full(&self.large));
        }
        let unread = missing.min(STREAM_WINDOW as usize);
        let _unread = Unread::begin(&self.unread, unread, self.large.most()).ok_or_else(|| Self::full(&self.large))?;
        let of_peer = &peer.accounts.unread;
        let _of_peer = Unread::begin(of_peer, unread, WAITING_PER_CONNECTION).ok_or_else(full_of_one)?;
        match timeout(self.patience.room, memory).await {
            Ok(Ok(taken)) => Ok(taken),
            Ok(Err(Full)) | Err(_) => Err(Self::full(&self.large)),
        }
    }

    /// Memory for a small message.
    pub(super) async fn small(&self, weight: usize, peer: &PeerInfo) -> Result<Held, Error> {
        match timeout(self.patience.room, self.small.take(&peer.accounts.small, weight)).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(Full)) | Err(_) => Err(Self::full(&self.small)),
        }
    }

    fn full(memory: &Memory) -> Error {
        Error::Unavailable(format!(
            "the {} of limits.received_bytes are in use by earlier messages, or a quarter of them by this connection or \
             its principal; try again later",
            human(memory.most())
        ))
    }
}

fn full_of_one() -> Error {
    let problem = "limits.received_bytes are in use, and too many messages of this connection wait already; \
                   send fewer at once, or try again later";
    Error::Unavailable(problem.into())
}

/// Bytes, formatted for people.
pub(super) fn human(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Counts unread bytes while it exists.
struct Unread<'a> {
    count: &'a AtomicUsize,
    bytes: usize,
}

impl<'a> Unread<'a> {
    /// `None`: too many bytes wait. One message may always wait.
    fn begin(count: &'a AtomicUsize, bytes: usize, most: usize) -> Option<Self> {
        let before = count.fetch_add(bytes, Ordering::Relaxed);
        let waiting = Self { count, bytes };
        (before == 0 || before + bytes <= most).then_some(waiting)
    }
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
