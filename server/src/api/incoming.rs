//! The accept loop: it takes a bounded number of connections, and no error ends it or makes it spin.

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

use super::peer::{ConnectionSlot, Peer};
use crate::metrics::ConnectionCounts;

/// How long the loop pauses after the first error that is not the peer's.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause. Others free file descriptors, so the loop can only try again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The bounds of connections.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// The most connections at once.
    pub(super) connections: usize,
    /// How long a peer has for the HTTP/2 preface.
    pub(super) preface: Duration,
    /// Closes all connections when cancelled.
    pub(super) cut: CancellationToken,
    /// Counters of connections.
    pub(super) counts: ConnectionCounts,
}

/// The accepted connections. The stream never ends and never fails.
pub(super) fn incoming(listener: TcpListener, terms: Terms) -> impl Stream<Item = io::Result<Peer>> {
    let slots = Arc::new(Semaphore::new(terms.connections.min(Semaphore::MAX_PERMITS)));
    let state = Incoming { listener, terms, slots, refusals: Throttle::default(), failures: Throttle::default() };
    stream::unfold(state, |mut state| async move { Some((Ok(state.next().await), state)) })
}

struct Incoming {
    listener: TcpListener,
    terms: Terms,
    slots: Arc<Semaphore>,
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
                        tracing::error!(%error, times, "cannot accept connections; trying again");
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Takes a slot for the connection, or closes it.
    fn admit(&mut self, stream: TcpStream) -> Option<Peer> {
        let Ok(permit) = self.slots.clone().try_acquire_owned() else {
            self.terms.counts.refused.inc();
            if let Some(times) = self.refusals.ready() {
                let limit = self.terms.connections;
                tracing::warn!(limit, times, "too many connections (limits.connections); closing new ones");
            }
            return None;
        };
        self.terms.counts.accepted.inc();
        // We gather small writes ourselves, so a write should leave at once. This fails if the peer has gone already;
        // then the first read fails too.
        let _ = stream.set_nodelay(true);
        let slot = ConnectionSlot::new(permit, self.terms.counts.open.clone());
        Some(Peer::new(stream, self.terms.preface, &self.terms.cut, slot))
    }
}

/// Whether the error concerns only the connection that was being accepted.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | TimedOut)
}

/// Limits a log line to one per second.
#[derive(Debug, Default)]
struct Throttle {
    last: Option<Instant>,
    times: u64,
}

impl Throttle {
    /// If a line is due: how often the event has happened since the last one, this time included.
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
