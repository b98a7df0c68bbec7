//! The connections of this port. There are so many places, and always one for a probe: when all are taken, the connection
//! that has been idle for longest makes room. Connections that send jobs are left alone, and have only a part of the places.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{access::Peer, api::local::Client, memory::Account, quota::Address, tls::PeerIdentity};

/// A connection this young is not closed for another one: its first request may be on its way.
const YOUNG: Duration = Duration::from_millis(100);

/// All places.
pub(super) struct Places {
    taken: Mutex<Taken>,
    left: Notify,
    most: usize,
}

#[derive(Default)]
struct Taken {
    places: HashMap<u64, Weak<Place>>,
    next: u64,
}

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    number: u64,
    places: Weak<Places>,
    /// Closes the connection.
    pub(super) closed: CancellationToken,
    activity: Mutex<Activity>,
    /// What it uses of the memory for bodies.
    pub(super) account: Arc<Account>,
    /// Where it comes from, if that is told apart.
    address: Option<Arc<Address>>,
    /// Who the client is, once it has shown a certificate.
    pub(super) identity: OnceLock<PeerIdentity>,
}

struct Activity {
    last: Instant,
    /// Requests in progress that must not be cut off.
    kept: usize,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::default(), left: Notify::new(), most })
    }

    /// A place; another connection may be closed for it.
    pub(super) async fn take(self: &Arc<Self>, address: Option<Arc<Address>>) -> Arc<Place> {
        loop {
            let left = self.left.notified();
            if let Some(place) = self.try_take(address.as_ref()) {
                return place;
            }
            self.close_one();
            // A connection that was closed leaves soon; one that is young now will be older.
            let _ = tokio::time::timeout(YOUNG, left).await;
        }
    }

    fn try_take(self: &Arc<Self>, address: Option<&Arc<Address>>) -> Option<Arc<Place>> {
        let mut taken = self.taken.lock();
        if taken.places.len() >= self.most {
            return None;
        }
        taken.next += 1;
        let place = Arc::new(Place {
            number: taken.next,
            places: Arc::downgrade(self),
            closed: CancellationToken::new(),
            activity: Mutex::new(Activity { last: Instant::now(), kept: 0 }),
            account: Arc::default(),
            address: address.cloned(),
            identity: OnceLock::new(),
        });
        taken.places.insert(place.number, Arc::downgrade(&place));
        Some(place)
    }

    /// Closes the connection that has been idle for longest.
    fn close_one(&self) {
        // Dropped after the lock: they lock it, too.
        let places: Vec<Arc<Place>> = self.taken.lock().places.values().filter_map(Weak::upgrade).collect();
        let idle = places.iter().filter(|place| !place.closed.is_cancelled()).filter_map(|place| {
            let activity = place.activity.lock();
            (activity.kept == 0 && activity.last.elapsed() >= YOUNG).then_some((activity.last, place))
        });
        if let Some((_, place)) = idle.min_by_key(|(last, _)| *last) {
            place.closed.cancel();
        }
    }
}

impl Place {
    /// Where its requests come from.
    pub(super) fn peer(&self) -> Peer<'_> {
        Peer { address: self.address.as_deref(), identity: self.identity.get() }
    }

    /// Its client, for calls in this process.
    pub(super) fn client(&self, socket: SocketAddr) -> Client {
        Client { socket, address: self.address.clone(), identity: self.identity.get().cloned() }
    }

    /// A request has come.
    pub(super) fn touch(&self) {
        self.activity.lock().last = Instant::now();
    }

    /// The connection is left alone until this is dropped.
    pub(super) fn keep(self: &Arc<Self>) -> Kept {
        self.activity.lock().kept += 1;
        Kept(self.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(places) = self.places.upgrade() {
            places.taken.lock().places.remove(&self.number);
            places.left.notify_one();
        }
    }
}

/// A request in progress that must not be cut off.
pub(super) struct Kept(Arc<Place>);

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
        let places = Places::new(3);
        let (a, b, c) = (places.take(None).await, places.take(None).await, places.take(None).await);
        let kept = a.keep();
        b.touch();
        c.touch();
        b.touch();
        let taking = places.take(None);
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
