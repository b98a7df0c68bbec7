//! Memory for messages: one budget for large messages and one for small ones, each shared by all connections.

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
use howdah_core::{error::Error, job::Limits};
use howdah_engine::memory::{Full, Held, Memory};
use tokio::time::timeout;

use crate::api::{
    peer::PeerInfo,
    server::{CONNECTION_WINDOW, STREAM_WINDOW},
};

/// Maximum number of unread bytes of one connection for messages that wait for memory: half of its flow-control window. The
/// other half lets messages with memory arrive.
pub(crate) const WAITING_PER_CONNECTION: usize = CONNECTION_WINDOW as usize / 2;

/// Time limits of requests and responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveTimeouts {
    /// Maximum time that a message waits for memory.
    pub(crate) room: Duration,
    /// Maximum time for a message to arrive, not including its wait for memory.
    pub(crate) message: Duration,
    /// Additional time for each MiB of a message to arrive.
    pub(crate) mib: Duration,
    /// Time after which a received message is dropped if its stream does not ask for the next one.
    pub(crate) held: Duration,
    /// Maximum time between the message of a unary request and the end of the request.
    pub(crate) end: Duration,
    /// Maximum time for the client to read the response.
    pub(crate) answer: Duration,
}

/// Memory budget for the messages of all connections.
#[derive(Debug)]
pub(in crate::api) struct Budget {
    pub(in crate::api) large: Arc<Memory>,
    pub(in crate::api) small: Arc<Memory>,
    /// Number of unread bytes of messages that wait for memory, on all connections.
    unread: AtomicUsize,
    /// Maximum size of a request message, in bytes.
    pub(super) message_bytes: usize,
    pub(super) timeouts: ReceiveTimeouts,
}

impl Budget {
    pub(in crate::api) fn new(limits: &Limits, timeouts: ReceiveTimeouts) -> Self {
        Self {
            large: Memory::new(limits.received_bytes),
            small: Memory::new(limits.received_bytes),
            unread: AtomicUsize::new(0),
            message_bytes: limits.message_bytes,
            timeouts,
        }
    }

    /// Admits a large message. The memory is reserved later, as bytes of the message arrive.
    pub(super) async fn begin(&self, wire: usize, peer: &PeerInfo) -> Result<Held, Error> {
        self.wait(self.large.begin(&peer.accounts.large, wire), wire, peer).await
    }

    /// Reserves more memory for a large message of which `missing` bytes have not arrived.
    pub(super) async fn grow(
        &self,
        held: &mut Held,
        bytes: usize,
        (missing, peer): (usize, &PeerInfo),
    ) -> Result<(), Error> {
        self.wait(held.grow(bytes), missing, peer).await
    }

    /// Waits for memory for a message. Up to `missing` bytes of the message stay unread meanwhile.
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
        match timeout(self.timeouts.room, memory).await {
            Ok(Ok(taken)) => Ok(taken),
            Ok(Err(Full)) | Err(_) => Err(Self::full(&self.large)),
        }
    }

    /// Reserves memory for a small message.
    pub(super) async fn small(&self, weight: usize, peer: &PeerInfo) -> Result<Held, Error> {
        match timeout(self.timeouts.room, self.small.take(&peer.accounts.small, weight)).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(Full)) | Err(_) => Err(Self::full(&self.small)),
        }
    }

    fn full(memory: &Memory) -> Error {
        Error::Unavailable(format!(
            "the {} for received messages (limits.received_bytes) are in use by earlier messages, or a quarter of them by \
             this connection or its principal; try again later",
            human(memory.most())
        ))
    }
}

fn full_of_one() -> Error {
    let problem = "the memory for received messages (limits.received_bytes) is in use, and too many messages of this \
                   connection wait already; send fewer at once, or try again later";
    Error::Unavailable(problem.into())
}

/// Formats a number of bytes for errors.
pub(super) fn human(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Guard that adds unread bytes to a counter, and subtracts them when it is dropped.
struct Unread<'a> {
    count: &'a AtomicUsize,
    bytes: usize,
}

impl<'a> Unread<'a> {
    /// Returns `None` if the messages that wait for memory have too many unread bytes. A single message may always wait.
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
