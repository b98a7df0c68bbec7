//! Connection slots of the HTTP port. A probe always gets a slot: when all are taken, the connection that has been idle for the
//! longest time is closed. Connections that enqueue jobs are not closed, and may use only a part of the slots.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use howdah_engine::{memory::Account, quota::Address};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{api::local::Client, credentials::Peer, tls::PeerIdentity};

/// Connections younger than this are not closed, because their first request may not have arrived yet.
const YOUNG: Duration = Duration::from_millis(100);

/// All slots.
pub(super) struct Slots {
    taken: Mutex<Taken>,
    left: Notify,
    most: usize,
}

#[derive(Default)]
struct Taken {
    slots: HashMap<u64, Weak<Slot>>,
    next: u64,
}

/// Connection slot, which is released on drop.
pub(super) struct Slot {
    number: u64,
    slots: Weak<Slots>,
    /// Cancelling this token closes the connection.
    pub(super) closed: CancellationToken,
    activity: Mutex<Activity>,
    /// Account of the connection in the memory budget for request bodies.
    pub(super) account: Arc<Account>,
    /// Quotas of the client's address. `None` if authentication is off.
    address: Option<Arc<Address>>,
    /// Identity from the client certificate, set once the client has presented it.
    pub(super) identity: OnceLock<PeerIdentity>,
}

struct Activity {
    last: Instant,
    /// Number of requests in progress that must not be interrupted.
    kept: usize,
}

impl Slots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::default(), left: Notify::new(), most })
    }

    /// Takes a connection slot. If all are taken, closes an idle connection and waits for its slot.
    pub(super) async fn take(self: &Arc<Self>, address: Option<Arc<Address>>) -> Arc<Slot> {
        loop {
            let left = self.left.notified();
            if let Some(slot) = self.try_take(address.as_ref()) {
                return slot;
            }
            self.close_one();
            // A closed connection will release its slot soon. Otherwise a young connection will be old enough to be closed
            // after this time.
            let _ = tokio::time::timeout(YOUNG, left).await;
        }
    }

    fn try_take(self: &Arc<Self>, address: Option<&Arc<Address>>) -> Option<Arc<Slot>> {
        let mut taken = self.taken.lock();
        if taken.slots.len() >= self.most {
            return None;
        }
        taken.next += 1;
        let slot = Arc::new(Slot {
            number: taken.next,
            slots: Arc::downgrade(self),
            closed: CancellationToken::new(),
            activity: Mutex::new(Activity { last: Instant::now(), kept: 0 }),
            account: Arc::default(),
            address: address.cloned(),
            identity: OnceLock::new(),
        });
        taken.slots.insert(slot.number, Arc::downgrade(&slot));
        Some(slot)
    }

    /// Closes the connection that has been idle for the longest time.
    fn close_one(&self) {
        // The slots are collected, so that they are dropped after the lock is released: dropping a `Slot` takes the same lock.
        let slots: Vec<Arc<Slot>> = self.taken.lock().slots.values().filter_map(Weak::upgrade).collect();
        let idle = slots.iter().filter(|slot| !slot.closed.is_cancelled()).filter_map(|slot| {
            let activity = slot.activity.lock();
            (activity.kept == 0 && activity.last.elapsed() >= YOUNG).then_some((activity.last, slot))
        });
        if let Some((_, slot)) = idle.min_by_key(|(last, _)| *last) {
            slot.closed.cancel();
        }
    }
}

impl Slot {
    /// Returns the client address and identity of the connection, for authentication.
    pub(super) fn peer(&self) -> Peer<'_> {
        Peer { address: self.address.as_deref(), identity: self.identity.get() }
    }

    /// Client of the connection, for the calls that the page makes in this process.
    pub(super) fn client(&self, socket: SocketAddr) -> Client {
        Client { socket, address: self.address.clone(), identity: self.identity.get().cloned() }
    }

    /// Records that a request has arrived, so the connection is not idle.
    pub(super) fn touch(&self) {
        self.activity.lock().last = Instant::now();
    }

    /// Keeps the connection from being closed for a new one, until the guard is dropped.
    pub(super) fn keep(self: &Arc<Self>) -> Kept {
        self.activity.lock().kept += 1;
        Kept(self.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(slots) = self.slots.upgrade() {
            slots.taken.lock().slots.remove(&self.number);
            slots.left.notify_one();
        }
    }
}

/// Guard for a request in progress that must not be interrupted.
pub(super) struct Kept(Arc<Slot>);

impl Drop for Kept {
    fn drop(&mut self) {
        let mut activity = self.0.activity.lock();
        activity.kept -= 1;
        activity.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_connection_that_was_idle_for_longest_makes_room_and_one_at_work_does_not() {
        let slots = Slots::new(3);
        let (a, b, c) = (slots.take(None).await, slots.take(None).await, slots.take(None).await);
        let kept = a.keep();
        b.touch();
        c.touch();
        b.touch();
        let taking = slots.take(None);
        tokio::pin!(taking);
        let closed = tokio::select! {
            _ = &mut taking => "none",
            () = a.closed.cancelled() => "a",
            () = b.closed.cancelled() => "b",
            () = c.closed.cancelled() => "c",
        };
        assert_eq!(closed, "c");
        drop(c);
        taking.await;
        drop(kept);
    }
}
