//! Database in which jobs run: connects to it, keeps idle connections for the next jobs, and cancels statements.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use howdah_core::{
    config::{Dsn, UrlFile},
    error,
};
use howdah_engine::store::{ConnectBackoff, Source};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, UnixStream, lookup_host},
    time::timeout,
};
use tokio_postgres::{
    CancelToken,
    config::{Host, TargetSessionAttrs},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    login::{AnyError, Socket, log_in, socket},
    wire::{Stop, Wire},
};

/// Time limit for the DNS lookup, the connection, TLS and the login.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Maximum idle time after which a connection is not reused.
const IDLE: Duration = Duration::from_secs(300);
/// Statement that makes the server check the connection at this interval, so that a statement ends when its worker is gone.
const CHECK_CONNECTION: &str = "SET client_connection_check_interval = '5s'";

/// Database with its idle connections.
pub struct Database {
    source: Source,
    /// Whether the connection string sets an application name.
    pub(super) is_named: bool,
    /// Maximum size of a message of the server, in bytes.
    max_message: usize,
    /// Limits connection attempts to one at a time, with a pause after failures.
    pace: tokio::sync::Mutex<ConnectBackoff>,
    /// Error of the last failed connection attempt.
    problem: Mutex<String>,
    idle: Mutex<Vec<(Instant, Connection)>>,
    /// Names of built-in types of the server.
    pub(super) types: Mutex<HashMap<(u32, i32), String>>,
}

/// Connection for one job at a time.
pub(super) struct Connection {
    pub(super) wire: Wire,
    /// Whether the server checks that the worker is still connected.
    pub(super) is_probed: bool,
    pub(super) cancel_way: CancelWay,
}

/// Address and token to cancel a connection's statement.
#[derive(Clone)]
pub(super) struct CancelWay {
    token: CancelToken,
    connector: MakeRustlsConnect,
    address: ServerAddress,
}

/// TLS for one connection.
type RustlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;

/// Address of a server. A cancel request must go to the same address.
#[derive(Clone, Debug)]
enum ServerAddress {
    Tcp(SocketAddr, String),
    Unix(PathBuf),
}

impl Database {
    /// Parses a connection string, from the given file if any. Does not connect yet. Results have at most `max_result` bytes.
    pub fn new(text: &str, file: Option<UrlFile>, max_result: usize) -> Result<Self, String> {
        let source = Source::new(text, file);
        let loaded = source.load()?;
        let name = loaded.each.first().and_then(|(dsn, _)| dsn.config.get_application_name());
        Ok(Self {
            is_named: name.is_some_and(|name| name != "howdah"),
            source,
            // Larger than any row within the limit of a result.
            max_message: max_result.max(1 << 20) + (64 << 10),
            pace: tokio::sync::Mutex::default(),
            problem: Mutex::default(),
            idle: Mutex::default(),
            types: Mutex::default(),
        })
    }

    /// Takes an idle connection of an earlier job.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|(since, _)| since.elapsed() < IDLE);
        idle.pop().map(|(_, connection)| connection)
    }

    /// Puts back a connection whose session was reset.
    pub(super) fn put(&self, connection: Connection) {
        self.idle.lock().push((Instant::now(), connection));
    }

    /// Closes the idle connections.
    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        for (_, connection) in idle {
            connection.wire.close().await;
        }
    }

    /// Opens a connection. After a failure, reloads the files of the connection string.
    pub(super) async fn connect(&self) -> Result<Connection, String> {
        let mut pace = self.pace.lock().await;
        pace.pause().await;
        let connected = self.try_connect().await;
        match &connected {
            Ok(_) => pace.succeeded(),
            Err(problem) => {
                pace.refused();
                self.source.failed();
                problem.clone_into(&mut self.problem.lock());
            }
        }
        connected
    }

    /// Returns the error of the last failed connection attempt.
    pub(super) fn problem(&self) -> String {
        self.problem.lock().clone()
    }

    async fn try_connect(&self) -> Result<Connection, String> {
        let loaded = self.source.load_again()?;
        let is_one = loaded.each.len() == 1;
        let mut last = "the connection string has no host".to_owned();
        for (dsn, connector) in &loaded.each {
            let addresses = match addresses(dsn).await {
                Ok(addresses) => addresses,
                Err(problem) => {
                    last = problem;
                    continue;
                }
            };
            for address in addresses {
                last = match in_time(self.connect_to(dsn, connector.clone(), address, is_one)).await {
                    Ok(connection) => return Ok(connection),
                    Err(problem) => problem,
                };
            }
        }
        Err(last)
    }

    /// Connects to one address of a server, and logs in.
    async fn connect_to(
        &self,
        dsn: &Dsn,
        mut connector: MakeRustlsConnect,
        address: ServerAddress,
        is_one: bool,
    ) -> Result<Connection, AnyError> {
        let (socket, tls) = address.open(&mut connector).await?;
        let (socket, token) = log_in(socket, tls, &dsn.config).await?;
        let mut wire = Wire::new(socket, self.max_message);
        if !is_one {
            check_target(dsn, &mut wire).await?;
        }
        let is_probed = match wire.column(CHECK_CONNECTION).await {
            Ok(_) => true,
            Err(Stop::Failed(_)) => false,
            Err(stop) => return Err(stop.describe().into()),
        };
        Ok(Connection { wire, is_probed, cancel_way: CancelWay { token, connector, address } })
    }
}

impl CancelWay {
    /// Asks the server to cancel the connection's statement. The request may arrive before or after the statement.
    pub(super) async fn cancel(&self) -> Result<(), String> {
        let cancelling = async {
            let (socket, tls) = self.address.open(&mut self.connector.clone()).await?;
            Ok(self.token.cancel_query_raw(socket, tls).await?)
        };
        in_time(cancelling).await
    }
}

/// Waits for a step of a connection. Formats an error with its SQLSTATE.
async fn in_time<T>(step: impl Future<Output = Result<T, AnyError>>) -> Result<T, String> {
    let error = match timeout(CONNECT_WITHIN, step).await {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error,
        Err(_) => return Err(format!("no answer within {CONNECT_WITHIN:?}")),
    };
    let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
    let code = code.map(|code| format!(" (SQLSTATE {})", code.code())).unwrap_or_default();
    Err(format!("{}{code}", error::describe(error.as_ref())))
}

/// Checks that the host accepts writes, or matches `target_session_attrs`. A single host is not checked.
async fn check_target(dsn: &Dsn, wire: &mut Wire) -> Result<(), String> {
    let wanted = match dsn.config.get_target_session_attrs() {
        TargetSessionAttrs::ReadWrite => "off",
        TargetSessionAttrs::ReadOnly => "on",
        _ => return Ok(()),
    };
    let found = wire.column("SHOW transaction_read_only").await.map_err(|stop| stop.describe())?;
    match found.first() {
        Some(found) if found != wanted => Err("the host does not match the DSN's target_session_attrs".into()),
        _ => Ok(()),
    }
}

/// Returns the addresses of a connection string with one host.
async fn addresses(dsn: &Dsn) -> Result<Vec<ServerAddress>, String> {
    let config = &dsn.config;
    let port = config.get_ports().first().copied().unwrap_or(5432);
    match (config.get_hostaddrs().first(), config.get_hosts().first()) {
        (Some(address), host) => {
            let name = match host {
                Some(Host::Tcp(name)) => name.clone(),
                _ => address.to_string(),
            };
            Ok(vec![ServerAddress::Tcp((*address, port).into(), name)])
        }
        (None, Some(Host::Tcp(name))) => {
            let found = lookup_host((name.as_str(), port)).await.map_err(|error| error.to_string())?;
            Ok(found.map(|address| ServerAddress::Tcp(address, name.clone())).collect())
        }
        (None, Some(Host::Unix(dir))) => Ok(vec![ServerAddress::Unix(dir.join(format!(".s.PGSQL.{port}")))]),
        (None, None) => Ok(Vec::new()),
    }
}

impl ServerAddress {
    /// Host name that the certificate must match.
    fn name(&self) -> &str {
        match self {
            Self::Tcp(_, name) => name,
            Self::Unix(_) => "localhost",
        }
    }

    /// Opens a socket to the server. Also returns the TLS connector for it.
    async fn open(&self, connector: &mut MakeRustlsConnect) -> Result<(Socket, RustlsConnect), AnyError> {
        let socket = match self {
            Self::Tcp(address, _) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                // Detects within seconds that the server is gone, although a statement may run for hours without traffic.
                let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(10));
                let keepalive = keepalive.with_interval(Duration::from_secs(3)).with_retries(3);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                socket(stream)
            }
            Self::Unix(path) => socket(UnixStream::connect(path).await?),
        };
        Ok((socket, MakeTlsConnect::<Socket>::make_tls_connect(connector, self.name())?))
    }
}
