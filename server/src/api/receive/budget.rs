//! The memory for large messages: KiB that are given out in the order of requests, and a bounded queue of waiting ones.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::frames::Large;
use crate::{
    api::{
        peer::PeerInfo,
        server::{CONNECTION_WINDOW, STREAM_WINDOW},
    },
    error::Error,
    job::Limits,
};

/// The bytes that may stay unread of one connection's messages while they wait for memory: half of its window. With
/// more, they would block messages of the same connection that have memory.
pub(crate) const WAITING_PER_CONNECTION: usize = CONNECTION_WINDOW as usize / 2;

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until memory is free.
    pub(crate) room: Duration,
    /// For a message to arrive, once it has memory.
    pub(crate) message: Duration,
    /// In addition, for each MiB of it.
    pub(crate) mib: Duration,
    /// For a message that has arrived on a stream that does not ask for the next one.
    pub(crate) held: Duration,
}

/// The memory for large messages.
#[derive(Debug)]
pub(in crate::api) struct Budget {
    // In KiB: a semaphore's permits are 32-bit in one acquire.
    room: Arc<Semaphore>,
    most_kib: usize,
    /// Bytes that are unread while their messages wait for memory.
    waiting: AtomicUsize,
    /// The largest message.
    pub(super) message_bytes: usize,
    pub(super) patience: Patience,
}

/// Memory for one message; freed when dropped.
#[derive(Debug)]
pub(super) struct Room(#[expect(dead_code, reason = "held, not looked at")] OwnedSemaphorePermit);

impl Budget {
    pub(in crate::api) fn new(limits: &Limits, patience: Patience) -> Self {
        let most_kib = (limits.received_bytes >> 10).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self {
            room: Arc::new(Semaphore::new(most_kib)),
            most_kib,
            waiting: AtomicUsize::new(0),
            message_bytes: limits.message_bytes,
            patience,
        }
    }

    /// Reserves the memory that a message needs, and waits until it is free. A message that needs more than all of it
    /// may pass when it is alone.
    pub(super) async fn take(&self, large: Large, peer: &PeerInfo) -> Result<Room, Error> {
        let kib = large.weight.div_ceil(1 << 10).min(self.most_kib) as u32;
        // Fails while another message waits, so none is overtaken.
        if let Ok(room) = self.room.clone().try_acquire_many_owned(kib) {
            return Ok(Room(room));
        }
        let unread = large.wire.min(STREAM_WINDOW as usize);
        let _waiting = WaitingBytes::begin(&self.waiting, unread, self.most_kib << 10).ok_or_else(|| self.full())?;
        let _of_peer = WaitingBytes::begin(&peer.waiting, unread, WAITING_PER_CONNECTION).ok_or_else(full_of_one)?;
        match timeout(self.patience.room, self.room.clone().acquire_many_owned(kib)).await {
            Ok(Ok(room)) => Ok(Room(room)),
            Ok(Err(_)) | Err(_) => Err(self.full()),
        }
    }

    fn full(&self) -> Error {
        Error::Unavailable(format!(
            "the {} of limits.received_bytes are in use by earlier messages; try again later",
            human(self.most_kib << 10)
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

/// Counts waiting bytes while it exists.
struct WaitingBytes<'a> {
    count: &'a AtomicUsize,
    bytes: usize,
}

impl<'a> WaitingBytes<'a> {
    /// `None`: too many bytes wait. One message may always wait.
    fn begin(count: &'a AtomicUsize, bytes: usize, most: usize) -> Option<Self> {
        let before = count.fetch_add(bytes, Ordering::Relaxed);
        let waiting = Self { count, bytes };
        (before == 0 || before + bytes <= most).then_some(waiting)
    }
}

impl Drop for WaitingBytes<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
