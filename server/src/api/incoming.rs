//! The accept loop: so many connections and no more, and no error that ends it or makes it spin.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{Stream, stream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::peer::{Peer, Place};
use crate::metrics::ConnectionCounts;

/// How long the loop rests after the first error that is the machine's, not the peer's.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How long it rests at most: file descriptors are freed by others, it can only look again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What connections are taken in under.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// How many there may be at once.
    pub(super) connections: usize,
    /// How long a peer has for the HTTP/2 preface.
    pub(super) preface: Duration,
    /// Cuts all of them off.
    pub(super) cut: CancellationToken,
    /// Counted here.
    pub(super) counts: ConnectionCounts,
}

/// The connections as they come; it never ends and never fails.
pub(super) fn incoming(listener: TcpListener, terms: Terms) -> impl Stream<Item = io::Result<Peer>> {
    let places = Arc::new(Semaphore::new(terms.connections.min(Semaphore::MAX_PERMITS)));
    let state = Incoming { listener, terms, places, refusals: Throttle::default(), failures: Throttle::default() };
    stream::unfold(state, |mut state| async move { Some((Ok(state.next().await), state)) })
}

struct Incoming {
    listener: TcpListener,
    terms: Terms,
    places: Arc<Semaphore>,
    refusals: Throttle,
    failures: Throttle,
}

impl Incoming {
    async fn next(&mut self) -> Peer {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if let Some(peer) = self.admit(stream) {
                        return peer;
                    }
                }
                Err(error) if is_the_peers(&error) => {}
                Err(error) => {
                    self.terms.counts.failed.inc();
                    if let Some(times) = self.failures.ready() {
                        tracing::error!(%error, times, "cannot accept connections; trying on");
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// A place for it, or it is closed.
    fn admit(&mut self, stream: TcpStream) -> Option<Peer> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.terms.counts.refused.inc();
            if let Some(times) = self.refusals.ready() {
                let limit = self.terms.connections;
                tracing::warn!(limit, times, "too many connections; the new ones are closed");
            }
            return None;
        };
        self.terms.counts.accepted.inc();
        // Batches gather by themselves: what is written is meant to leave. A peer that has gone
        // already makes this fail, and the first read says so.
        let _ = stream.set_nodelay(true);
        let place = Place::new(place, self.terms.counts.open.clone());
        Some(Peer::new(stream, self.terms.preface, &self.terms.cut, place))
    }
}

/// Whether only the connection that was being accepted is at fault.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | TimedOut)
}

/// At most one line a second.
#[derive(Debug, Default)]
struct Throttle {
    last: Option<Instant>,
    times: u64,
}

impl Throttle {
    /// How often it has happened since the last line, this time included, if a line is due.
    fn ready(&mut self) -> Option<u64> {
        self.times += 1;
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < Duration::from_secs(1)) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_a_second_that_says_how_many() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.ready(), Some(1));
        assert!((0..100).all(|_| throttle.ready().is_none()));
        throttle.last = throttle.last.and_then(|last| last.checked_sub(Duration::from_secs(1)));
        assert_eq!(throttle.ready(), Some(101));
    }
}
