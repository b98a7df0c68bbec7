//! The accept loop. It bounds the number of connections. After an error it pauses, and then continues.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use futures::{Stream, stream};
use howdah_core::logging::Throttle;
use howdah_engine::metrics::ConnectionCounts;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::peer::{ConnectionSlot, Peer, PeerInfo};
use crate::{
    credentials::Authenticator,
    tls::{TlsPort, Transport},
};

/// Pause after the first failed accept that the peer did not cause.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Idle time of a connection after which the kernel sends the first keepalive probe.
const PROBE_AFTER: Duration = Duration::from_secs(10);
/// Interval between keepalive probes. The kernel answers them even if the process is blocked or stopped.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Time without an acknowledgement by the peer's kernel after which a connection ends, because the link or the machine is gone.
/// Together with `PROBE_AFTER`, a dead link is noticed within 25 s. On Linux this also ends a connection whose peer does not
/// read for that time. So clients must read on threads that job handlers do not block.
pub(crate) const UNACKNOWLEDGED: Duration = Duration::from_secs(15);
/// Maximum pause after a failed accept. The usual cause is a lack of file descriptors, which lasts until other connections
/// close.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Limits and services that apply to accepted connections.
#[derive(Clone)]
pub(super) struct Terms {
    /// Maximum number of concurrent connections.
    pub(super) connections: usize,
    /// Quotas of addresses and authentication. `None` to accept every caller.
    pub(super) access: Option<Arc<Authenticator>>,
    /// TLS configuration. `None` for connections without TLS.
    pub(super) tls: Option<Arc<TlsPort>>,
    /// Time limit for the HTTP/2 preface, after the TLS handshake.
    pub(super) preface: Duration,
    /// Closes all connections when cancelled.
    pub(super) cut: CancellationToken,
    /// Counters of connections.
    pub(super) counts: ConnectionCounts,
}

/// Returns the stream of accepted connections. The stream never ends and never fails.
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
    /// Running TLS handshakes, each with a connection slot. Meanwhile other connections are accepted.
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
                    if let Some(times) = self.failures.count() {
                        tracing::error!(%error, times, "cannot accept connections; trying again");
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Takes a connection slot for an accepted connection, or closes the connection if there is no slot. Returns `None` for a
    /// connection with TLS, which `handshakes` returns after its handshake.
    fn admit(&mut self, stream: TcpStream, from: IpAddr) -> Option<Peer> {
        let address = self.terms.access.as_ref().and_then(|access| access.address(from));
        let Some(info) = PeerInfo::from_address(address) else {
            self.terms.counts.refused.inc();
            if let Some(times) = self.refusals.count() {
                tracing::warn!(%from, times, "too many connections of one address (limits.address_connections); closing its new ones");
            }
            return None;
        };
        let Ok(permit) = self.slots.clone().try_acquire_owned() else {
            self.terms.counts.refused.inc();
            if let Some(times) = self.refusals.count() {
                let limit = self.terms.connections;
                tracing::warn!(limit, times, "too many connections (limits.connections); closing new ones");
            }
            return None;
        };
        self.terms.counts.accepted.inc();
        // Disables Nagle's algorithm, because the broker combines small writes. The call fails only if the peer has gone; then
        // the first read fails too.
        let _ = stream.set_nodelay(true);
        if let Err(error) = notice_dead_link(&stream) {
            tracing::debug!(%error, %from, "cannot set the keepalive options of a connection");
        }
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

/// Configures TCP keepalive, with which the kernel ends a connection whose link is dead.
fn notice_dead_link(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket
        .set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL).with_retries(3))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}

/// Whether the error concerns only the connection that was being accepted.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_accepted_connection_has_tcp_keepalive_and_a_user_timeout() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.unwrap();
        notice_dead_link(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_AFTER);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED));
        drop(client);
    }
}
