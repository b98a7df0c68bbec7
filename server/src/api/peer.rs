//! One connection, with two things that hyper has no setting for: a deadline for the HTTP/2 preface, and a way to cut
//! the connection.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::AtomicUsize},
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::{
    error::Error,
    memory::Account,
    quota::{Address, Open, Principal, Shares},
    tls::{PeerCertificate, PeerIdentity, Transport},
};

/// The length of `PRI * HTTP/2.0…`, which every client sends first. hyper pings only clients that have sent it.
const PREFACE_BYTES: usize = 24;

/// An accepted connection. Dropping it frees its slot.
#[derive(Debug)]
pub(super) struct Peer {
    stream: Transport,
    preface: Option<Preface>,
    cut: CancellationToken,
    /// The same as a future: it wakes the connection's task.
    was_cut: Pin<Box<WaitForCancellationFutureOwned>>,
    info: PeerInfo,
    _client: Option<PeerCertificate>,
    _slot: ConnectionSlot,
}

/// A slot of limits.connections, counted while it is taken.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl ConnectionSlot {
    pub(super) fn new(permit: OwnedSemaphorePermit, open: Gauge) -> Self {
        open.inc();
        Self { _permit: permit, open }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// What one connection uses of what all share.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Of the memory for large messages.
    pub(super) large: Arc<Account>,
    /// Of the memory for small messages.
    pub(super) small: Arc<Account>,
    /// Of the memory for answers.
    pub(super) answers: Arc<Account>,
    /// Of the memory for the answers of `WaitJobs`.
    pub(super) waits: Arc<Account>,
    /// Of the places for jobs that callers wait for.
    pub(super) waited: Arc<Account>,
    /// Bytes that may stay unread because their messages wait for memory (`receive`); of all principals of the connection.
    pub(super) unread: Arc<AtomicUsize>,
}

impl Accounts {
    /// The same connection's, as a part of what a principal uses.
    fn of(&self, principal: &Shares) -> Self {
        Self {
            large: Account::part_of(&principal.large),
            small: Account::part_of(&principal.small),
            answers: Account::part_of(&principal.answers),
            waits: Account::part_of(&principal.waits),
            waited: Account::part_of(&principal.waited),
            unread: self.unread.clone(),
        }
    }
}

/// Facts about the connection of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerInfo {
    /// Its other end.
    pub(super) socket: Option<SocketAddr>,
    /// Who the peer is, if it has shown a certificate.
    pub(super) identity: Option<PeerIdentity>,
    /// What the connection uses of the memory that all share.
    pub(super) accounts: Arc<Accounts>,
    /// Where it comes from, if that is told apart.
    pub(super) address: Option<Arc<Address>>,
    /// Counts it for the address, until it is known who calls.
    unknown: Arc<Mutex<Option<Open>>>,
    /// Who has called on it. Usually one principal; a proxy may share a connection among many.
    callers: Arc<Mutex<Vec<CallerOf>>>,
}

/// A principal that has called on a connection.
#[derive(Debug)]
struct CallerOf {
    principal: Arc<Principal>,
    accounts: Arc<Accounts>,
    /// It counts as one of the principal's connections.
    _open: Open,
}

impl PeerInfo {
    /// A connection from this address; `None`: it has too many on which nobody has authenticated.
    pub(super) fn from_address(address: Option<Arc<Address>>) -> Option<Self> {
        let open = match &address {
            Some(address) => Some(address.open_connection()?),
            None => None,
        };
        Some(Self { address, unknown: Arc::new(Mutex::new(open)), ..Self::default() })
    }

    /// Of a request on the HTTP port.
    pub(super) fn of_http(socket: SocketAddr, identity: Option<PeerIdentity>, address: Option<Arc<Address>>) -> Self {
        Self { socket: Some(socket), identity, address, ..Self::default() }
    }

    /// The connection as this principal uses it.
    pub(super) fn of(&self, principal: &Arc<Principal>) -> Result<Self, Error> {
        let mut callers = self.callers.lock();
        let known = callers.iter().find(|caller| Arc::ptr_eq(&caller.principal, principal));
        let accounts = if let Some(known) = known {
            known.accounts.clone()
        } else {
            // Behind a proxy, those without a call leave their places to others.
            callers.retain(|caller| Arc::strong_count(&caller.accounts) > 1);
            let open = principal.open_connection()?;
            self.unknown.lock().take();
            let accounts = Arc::new(self.accounts.of(&principal.shares));
            callers.push(CallerOf { principal: principal.clone(), accounts: accounts.clone(), _open: open });
            accounts
        };
        drop(callers);
        Ok(Self { accounts, ..self.clone() })
    }
}

/// The missing part of the preface, and its deadline.
#[derive(Debug)]
struct Preface {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Peer {
    /// The peer has `preface` time to send the preface. The connection is cut when `cut` is cancelled, or the
    /// client's certificate is good no longer.
    pub(super) fn new(
        stream: Transport,
        client: Option<PeerCertificate>,
        preface: Duration,
        cut: &CancellationToken,
        (slot, info): (ConnectionSlot, PeerInfo),
    ) -> Self {
        // A child token has a lock of its own; thousands of connections check it all the time.
        let (socket, identity) = (stream.peer_addr(), client.as_ref().map(|client| client.identity.clone()));
        let cut = client.as_ref().map_or(cut, |client| &client.ended).child_token();
        Self {
            stream,
            preface: Some(Preface { missing: PREFACE_BYTES, deadline: Box::pin(sleep(preface)) }),
            was_cut: Box::pin(cut.clone().cancelled_owned()),
            cut,
            info: PeerInfo { socket, identity, ..info },
            _client: client,
            _slot: slot,
        }
    }

    fn check_not_cut(&self) -> io::Result<()> {
        if self.cut.is_cancelled() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the broker has stopped, or the client's certificate has ended",
            ));
        }
        Ok(())
    }

    /// Counts the bytes read, or checks the deadline if none came.
    fn check_preface(&mut self, context: &mut Context<'_>, read: Option<usize>) -> io::Result<()> {
        let Some(preface) = &mut self.preface else {
            return Ok(());
        };
        if let Some(bytes) = read {
            preface.missing = preface.missing.saturating_sub(bytes);
            if preface.missing == 0 {
                self.preface = None;
            }
        } else if preface.deadline.as_mut().poll(context).is_ready() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no HTTP/2 preface in time"));
        }
        Ok(())
    }
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Polled first, so that it wakes the task whatever else the task waits for.
        let _ = self.was_cut.as_mut().poll(context);
        self.check_not_cut()?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer)?;
        let read = polled.is_ready().then(|| buffer.filled().len() - before);
        self.check_preface(context, read)?;
        polled.map(Ok)
    }
}

impl AsyncWrite for Peer {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_not_cut()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_not_cut()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Peer {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.info.clone()
    }
}
