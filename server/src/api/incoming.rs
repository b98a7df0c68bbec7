//! The accept loop: it takes a bounded number of connections, and no error ends it or makes it spin.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use futures::{Stream, stream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::peer::{ConnectionSlot, Peer, PeerInfo};
use crate::{
    access::Access,
    logging::Throttle,
    metrics::ConnectionCounts,
    tls::{TlsPort, Transport},
};

/// How long the loop pauses after the first error that is not the peer's.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause. Others free file descriptors, so the loop can only try again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The bounds of connections.
#[derive(Clone)]
pub(super) struct Terms {
    /// The most connections at once.
    pub(super) connections: usize,
    /// Who may call, and from where; `None`: everybody.
    pub(super) access: Option<Arc<Access>>,
    /// TLS, if connections begin with a handshake.
    pub(super) tls: Option<Arc<TlsPort>>,
    /// How long a peer has for the HTTP/2 preface, after the handshake.
    pub(super) preface: Duration,
    /// Closes all connections when cancelled.
    pub(super) cut: CancellationToken,
    /// Counters of connections.
    pub(super) counts: ConnectionCounts,
}

/// The accepted connections. The stream never ends and never fails.
pub(super) fn incoming(listener: TcpListener, terms: Terms) -> impl Stream<Item = io::Result<Peer>> {
    let slots = Arc::new(Semaphore::new(terms.connections.min(Semaphore::MAX_PERMITS)));
    let (refusals, failures) = (Throttle::default(), Throttle::default());
    let state = Incoming { listener, terms, slots, handshakes: JoinSet::new(), refusals, failures };
    stream::unfold(state, |mut state| async move { Some((Ok(state.next().await), state)) })
}

struct Incoming {
    listener: TcpListener,
    terms: Terms,
    slots: Arc<Semaphore>,
    /// Handshakes that go on while others are accepted. Each has a slot.
    handshakes: JoinSet<Option<Peer>>,
    refusals: Throttle,
    failures: Throttle,
}

impl Incoming {
    async fn next(&mut self) -> Peer {
        let mut pause = FIRST_PAUSE;
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(done) = self.handshakes.join_next() => match done {
                    Ok(Some(peer)) => return peer,
                    Ok(None) | Err(_) => continue,
                },
            };
            match accepted {
                Ok((stream, from)) => {
                    if let Some(peer) = self.admit(stream, from.ip()) {
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

    /// Takes a slot for the connection, or closes it. With TLS the peer comes later, after its handshake.
    fn admit(&mut self, stream: TcpStream, from: IpAddr) -> Option<Peer> {
        let address = self.terms.access.as_ref().and_then(|access| access.address(from));
        let Some(info) = PeerInfo::from_address(address) else {
            self.terms.counts.refused.inc();
            if let Some(times) = self.refusals.ready() {
                tracing::warn!(%from, times, "too many connections (limits.address_connections); closing new ones");
            }
            return None;
        };
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
        let (preface, cut) = (self.terms.preface, self.terms.cut.clone());
        let Some(tls) = self.terms.tls.clone() else {
            return Some(Peer::new(Transport::Plain(stream), None, preface, &cut, (slot, info)));
        };
        self.handshakes.spawn(async move {
            let (stream, client) = tls.accept(stream, &cut).await?;
            Some(Peer::new(stream, client, preface, &cut, (slot, info)))
        });
        None
    }
}

/// Whether the error concerns only the connection that was being accepted.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | TimedOut)
}
