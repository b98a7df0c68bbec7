//! The room there is: KiB that are taken in the order of asking, and a bounded line of those who ask.

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

/// What may lie unread of one connection's messages that wait for room: half of its window. Otherwise
/// they would keep those that have room, on the same connection, from coming in.
pub(crate) const WAITING_PER_CONNECTION: usize = CONNECTION_WINDOW as usize / 2;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until there is room.
    pub(crate) room: Duration,
    /// For a message to arrive, once there is room.
    pub(crate) message: Duration,
    /// And for each MiB of it.
    pub(crate) mib: Duration,
    /// For a message that is there, with a stream that does not ask for the next.
    pub(crate) held: Duration,
}

/// The room for large messages.
#[derive(Debug)]
pub(in crate::api) struct Budget {
    // In KiB: a semaphore's permits are 32-bit in one acquire.
    room: Arc<Semaphore>,
    most_kib: usize,
    /// Bytes that may lie unread while their messages wait for room.
    waiting: AtomicUsize,
    /// A message has at most so many bytes.
    pub(super) message_bytes: usize,
    pub(super) patience: Patience,
}

/// Room for one message; free again when dropped.
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

    /// Takes the room that a message needs, once it is there. One that needs more than there is may pass
    /// when it is alone.
    pub(super) async fn take(&self, large: Large, peer: &PeerInfo) -> Result<Room, Error> {
        let kib = large.weight.div_ceil(1 << 10).min(self.most_kib) as u32;
        // Fails while anybody waits: nobody is overtaken.
        if let Ok(room) = self.room.clone().try_acquire_many_owned(kib) {
            return Ok(Room(room));
        }
        let unread = large.wire.min(STREAM_WINDOW as usize);
        let _waiting = Waiting::begin(&self.waiting, unread, self.most_kib << 10).ok_or_else(|| self.full())?;
        let _of_peer = Waiting::begin(&peer.waiting, unread, WAITING_PER_CONNECTION).ok_or_else(full_of_one)?;
        match timeout(self.patience.room, self.room.clone().acquire_many_owned(kib)).await {
            Ok(Ok(room)) => Ok(Room(room)),
            Ok(Err(_)) | Err(_) => Err(self.full()),
        }
    }

    fn full(&self) -> Error {
        Error::Unavailable(format!(
            "the {} of limits.received_bytes are taken by messages that came before; try again later",
            human(self.most_kib << 10)
        ))
    }
}

fn full_of_one() -> Error {
    let problem = "limits.received_bytes are taken, and too many messages of this connection wait already; \
                   send fewer at once, or try again later";
    Error::Unavailable(problem.into())
}

/// Bytes, for people.
pub(super) fn human(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Counts bytes that wait.
struct Waiting<'a> {
    count: &'a AtomicUsize,
    bytes: usize,
}

impl<'a> Waiting<'a> {
    /// `None`: too many do. One may always wait.
    fn begin(count: &'a AtomicUsize, bytes: usize, most: usize) -> Option<Self> {
        let before = count.fetch_add(bytes, Ordering::Relaxed);
        let waiting = Self { count, bytes };
        (before == 0 || before + bytes <= most).then_some(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
