//! A connection with two features that hyper lacks: a deadline for the HTTP/2 preface, and a way to cut the connection.

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
    quota::{Address, OpenGuard, Principal, Shares},
    tls::{PeerCertificate, PeerIdentity, Transport},
};

/// Length of `PRI * HTTP/2.0…`, which every client sends first. hyper pings only clients that have sent it.
const PREFACE_BYTES: usize = 24;

/// An accepted connection. Dropping it frees its slot.
#[derive(Debug)]
pub(super) struct Peer {
    stream: Transport,
    preface: Option<Preface>,
    cut: CancellationToken,
    /// Future of the cut token: it wakes the connection's task.
    was_cut: Pin<Box<WaitForCancellationFutureOwned>>,
    info: PeerInfo,
    _client: Option<PeerCertificate>,
    _slot: ConnectionSlot,
}

/// A slot of limits.connections, counted in the gauge until it is dropped.
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
    /// Memory for large messages.
    pub(super) large: Arc<Account>,
    /// Memory for small messages.
    pub(super) small: Arc<Account>,
    /// Memory for responses.
    pub(super) answers: Arc<Account>,
    /// Memory for the answers of `WaitJobs`.
    pub(super) waits: Arc<Account>,
    /// Slots for jobs that callers wait for.
    pub(super) waited: Arc<Account>,
    /// Bytes that may stay unread while their messages wait for memory (`receive`); shared by all principals of the connection.
    pub(super) unread: Arc<AtomicUsize>,
}

impl Accounts {
    /// Accounts of the connection whose usage also counts for the principal.
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
    /// Counts the connection as unauthenticated for the address, until a caller has authenticated.
    unknown: Arc<Mutex<Option<OpenGuard>>>,
    /// Principals that have called on the connection. Usually one; a proxy may share a connection among many.
    callers: Arc<Mutex<Vec<CallerOf>>>,
}

/// A principal that has called on a connection.
#[derive(Debug)]
struct CallerOf {
    principal: Arc<Principal>,
    accounts: Arc<Accounts>,
    /// Counts the connection for the principal.
    _open: OpenGuard,
}

impl PeerInfo {
    /// A connection from this address; `None` if the address has too many unauthenticated connections.
    pub(super) fn from_address(address: Option<Arc<Address>>) -> Option<Self> {
        let open = match &address {
            Some(address) => Some(address.open_connection()?),
            None => None,
        };
        Some(Self { address, unknown: Arc::new(Mutex::new(open)), ..Self::default() })
    }

    /// Information about a request on the HTTP port.
    pub(super) fn of_http(socket: SocketAddr, identity: Option<PeerIdentity>, address: Option<Arc<Address>>) -> Self {
        Self { socket: Some(socket), identity, address, ..Self::default() }
    }

    /// The connection with the accounts of this principal. The principal's first call counts the connection for its
    /// quota.
    pub(super) fn with_principal(&self, principal: &Arc<Principal>) -> Result<Self, Error> {
        let mut callers = self.callers.lock();
        let known = callers.iter().find(|caller| Arc::ptr_eq(&caller.principal, principal));
        let accounts = if let Some(known) = known {
            known.accounts.clone()
        } else {
            // Stops counting the connection for principals without an active call: a proxy may use it for many
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

/// Number of preface bytes that have not arrived, and their deadline.
#[derive(Debug)]
struct Preface {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Peer {
    /// Wraps a connection. The client has `preface` time to send the preface. The connection is cut when `cut` is cancelled or the
    /// client's certificate expires.
    pub(super) fn new(
        stream: Transport,
        client: Option<PeerCertificate>,
        preface: Duration,
        cut: &CancellationToken,
        (slot, info): (ConnectionSlot, PeerInfo),
    ) -> Self {
        // Each connection gets a child token with a separate lock, because thousands of connections check their tokens
        // often.
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

    /// Counts the bytes read, or checks the deadline if no bytes have arrived.
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
        // Polled first, so that a cut wakes the task in any state.
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
