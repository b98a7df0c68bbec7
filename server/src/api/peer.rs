//! A connection with two features that hyper lacks: a deadline for the HTTP/2 preface, and a way to close the connection at
//! once.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::AtomicUsize},
    task::{Context, Poll},
    time::Duration,
};

use howdah_core::error::Error;
use howdah_engine::{
    memory::Account,
    quota::{Address, OpenGuard, Principal, Shares},
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

use crate::tls::{PeerCertificate, PeerIdentity, Transport};

/// Length of the HTTP/2 preface `PRI * HTTP/2.0…`, which every client sends first. hyper pings only clients that have sent it.
const PREFACE_BYTES: usize = 24;

/// An accepted connection. Dropping it frees its connection slot.
#[derive(Debug)]
pub(super) struct Peer {
    stream: Transport,
    preface: Option<Preface>,
    cut: CancellationToken,
    /// Future that completes when `cut` is cancelled. Polling it registers the connection's task to be woken.
    was_cut: Pin<Box<WaitForCancellationFutureOwned>>,
    info: PeerInfo,
    _client: Option<PeerCertificate>,
    _slot: ConnectionSlot,
}

/// A connection slot (`limits.connections`), which the gauge of open connections counts until it is dropped.
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

/// Usage of shared resources by one connection.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Memory for large request messages.
    pub(super) large: Arc<Account>,
    /// Memory for small request messages.
    pub(super) small: Arc<Account>,
    /// Memory for responses.
    pub(super) answers: Arc<Account>,
    /// Memory for the answers of `WaitJobs`.
    pub(super) waits: Arc<Account>,
    /// Number of jobs for whose end `WaitJobs` calls wait.
    pub(super) waited: Arc<Account>,
    /// Bytes that may stay unread while their messages wait for memory (`receive`); shared by all principals of the connection.
    pub(super) unread: Arc<AtomicUsize>,
}

impl Accounts {
    /// Accounts of the connection for calls of one principal. Their usage also counts for the principal.
    fn with_principal(&self, principal: &Shares) -> Self {
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

/// Information about the connection of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerInfo {
    /// Remote address.
    pub(super) socket: Option<SocketAddr>,
    /// Identity from the client's certificate, if it has shown one.
    pub(super) identity: Option<PeerIdentity>,
    /// Usage of shared memory by the connection.
    pub(super) accounts: Arc<Accounts>,
    /// Quotas of the client's address; `None` if authentication is off.
    pub(super) address: Option<Arc<Address>>,
    /// Counts the connection against the address's limit of unauthenticated connections, until a caller has authenticated.
    unknown: Arc<Mutex<Option<OpenGuard>>>,
    /// Principals that have called on the connection. Usually one; a proxy may share a connection among many.
    callers: Arc<Mutex<Vec<CallerOf>>>,
}

/// A principal that has made calls on a connection.
#[derive(Debug)]
struct CallerOf {
    principal: Arc<Principal>,
    accounts: Arc<Accounts>,
    /// Counts the connection against the principal's limit until it is dropped.
    _open: OpenGuard,
}

impl PeerInfo {
    /// Returns the info of a connection from this address. `None` if the address has too many unauthenticated connections.
    pub(super) fn from_address(address: Option<Arc<Address>>) -> Option<Self> {
        let open = match &address {
            Some(address) => Some(address.open_connection()?),
            None => None,
        };
        Some(Self { address, unknown: Arc::new(Mutex::new(open)), ..Self::default() })
    }

    /// Returns the info of a connection on the HTTP port.
    pub(super) fn of_http(socket: SocketAddr, identity: Option<PeerIdentity>, address: Option<Arc<Address>>) -> Self {
        Self { socket: Some(socket), identity, address, ..Self::default() }
    }

    /// Returns the connection with the accounts of this principal. The first call of the principal counts the connection
    /// against the principal's quota.
    pub(super) fn with_principal(&self, principal: &Arc<Principal>) -> Result<Self, Error> {
        let mut callers = self.callers.lock();
        let known = callers.iter().find(|caller| Arc::ptr_eq(&caller.principal, principal));
        let accounts = if let Some(known) = known {
            known.accounts.clone()
        } else {
            // Stops counting the connection for principals that have no active call, because a proxy may use it for many
            // principals.
            callers.retain(|caller| Arc::strong_count(&caller.accounts) > 1);
            let open = principal.open_connection()?;
            self.unknown.lock().take();
            let accounts = Arc::new(self.accounts.with_principal(&principal.shares));
            callers.push(CallerOf { principal: principal.clone(), accounts: accounts.clone(), _open: open });
            accounts
        };
        drop(callers);
        Ok(Self { accounts, ..self.clone() })
    }
}

/// The part of the HTTP/2 preface that has not arrived, in bytes, and its deadline.
#[derive(Debug)]
struct Preface {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Peer {
    /// Wraps a connection. The client has `preface` time to send the preface. The connection is closed when `cut` is cancelled
    /// or the client's certificate expires.
    pub(super) fn new(
        stream: Transport,
        client: Option<PeerCertificate>,
        preface: Duration,
        cut: &CancellationToken,
        (slot, info): (ConnectionSlot, PeerInfo),
    ) -> Self {
        // A child token has its own lock, which avoids contention: thousands of connections check their tokens often.
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
                "the broker has stopped, or the client's certificate has expired or was revoked",
            ));
        }
        Ok(())
    }

    /// Subtracts the bytes read from the missing bytes of the preface. Fails if none were read and the deadline has passed.
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
        // `was_cut` is polled first, so that cancelling `cut` wakes the task in any state.
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
