//! Database in which jobs run: connects to it, keeps idle connections for the next jobs, and cancels statements.

use std::{
    collections::HashMap,
    io,
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
    login::{Socket, log_in, socket},
    wire::{Broken, Message, Wire},
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
    is_named: bool,
    /// Limits connection attempts to one at a time, with a pause after failures.
    pace: tokio::sync::Mutex<ConnectBackoff>,
    /// Error of the last failed connection attempt.
    problem: Mutex<String>,
    idle: Mutex<Vec<(Instant, Connection)>>,
    /// Names of built-in types of the server.
    pub(super) types: Mutex<HashMap<(u32, i32), String>>,
}

impl std::fmt::Debug for Database {
    /// Shows no fields, because the connection string may contain a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
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

/// Address of a server. A cancel request must go to the same address.
#[derive(Clone, Debug)]
enum ServerAddress {
    Tcp(SocketAddr, String),
    Unix(PathBuf),
}

impl Database {
    /// Parses a connection string, from the given file if any. Does not connect yet.
    pub fn new(text: &str, file: Option<UrlFile>) -> Result<Self, String> {
        let source = Source::new(text, file);
        let loaded = source.load()?;
        let name = loaded.each.first().and_then(|(dsn, _)| dsn.config.get_application_name());
        Ok(Self {
            is_named: name.is_some_and(|name| name != "howdah"),
            source,
            pace: tokio::sync::Mutex::default(),
            problem: Mutex::default(),
            idle: Mutex::default(),
            types: Mutex::default(),
        })
    }

    /// Returns whether the connection string sets an application name.
    pub(super) const fn is_named(&self) -> bool {
        self.is_named
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

    /// Opens a connection with this maximum message size. After a failure, reloads the files of the connection string.
    pub(super) async fn connect(&self, most: usize) -> Result<Connection, String> {
        let mut pace = self.pace.lock().await;
        pace.pause().await;
        let connected = self.try_connect(most).await;
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

    async fn try_connect(&self, most: usize) -> Result<Connection, String> {
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
                let connecting = connect_to((dsn, connector.clone()), &address, most, is_one);
                last = match timeout(CONNECT_WITHIN, connecting).await {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(problem)) => problem,
                    Err(_) => format!("no answer within {CONNECT_WITHIN:?}"),
                };
            }
        }
        Err(last)
    }

    /// Asks the server to cancel the connection's statement. The request may arrive before or after the statement.
    pub(super) async fn cancel(&self, way: &CancelWay) -> Result<(), String> {
        let mut connector = way.connector.clone();
        let cancelling = async {
            let socket = open(&way.address).await.map_err(|error| error::describe(&error))?;
            let tls = MakeTlsConnect::<Socket>::make_tls_connect(&mut connector, way.address.name())
                .map_err(|e| error::describe(&e))?;
            way.token.cancel_query_raw(socket, tls).await.map_err(|error| error::describe(&error))
        };
        match timeout(CONNECT_WITHIN, cancelling).await {
            Ok(done) => done,
            Err(_) => Err(format!("no answer within {CONNECT_WITHIN:?}")),
        }
    }
}

/// Formats an error of a login with its SQLSTATE.
fn described(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
    let code = code.map(|code| format!(" (SQLSTATE {})", code.code())).unwrap_or_default();
    format!("{}{code}", error::describe(error))
}

/// Connects to one address of a server, and logs in.
async fn connect_to(
    (dsn, mut connector): (&Dsn, MakeRustlsConnect),
    address: &ServerAddress,
    most: usize,
    is_one: bool,
) -> Result<Connection, String> {
    let socket = open(address).await.map_err(|error| error::describe(&error))?;
    let kept = connector.clone();
    let tls =
        MakeTlsConnect::<Socket>::make_tls_connect(&mut connector, address.name()).map_err(|e| error::describe(&e))?;
    let (socket, token) = log_in(socket, tls, &dsn.config).await.map_err(|error| described(error.as_ref()))?;
    let mut wire = Wire::new(socket, most);
    if !is_one {
        check_target(dsn, &mut wire).await?;
    }
    let is_probed = match wire.query(CHECK_CONNECTION, |_| Ok(())).await {
        Ok(finished) => finished.problem.is_none(),
        Err(broken) => return Err(broken.describe()),
    };
    Ok(Connection { wire, is_probed, cancel_way: CancelWay { token, connector: kept, address: address.clone() } })
}

/// Checks that the host accepts writes, or matches `target_session_attrs`. A single host is not checked.
async fn check_target(dsn: &Dsn, wire: &mut Wire) -> Result<(), String> {
    let wanted = match dsn.config.get_target_session_attrs() {
        TargetSessionAttrs::ReadWrite => "off",
        TargetSessionAttrs::ReadOnly => "on",
        _ => return Ok(()),
    };
    let mut found = None;
    let shown = wire.query("SHOW transaction_read_only", |message| {
        if let Message::Row(row) = message {
            found = row.values().next().flatten();
        }
        Ok(())
    });
    shown.await.map_err(Broken::describe)?;
    match found {
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
}

async fn open(address: &ServerAddress) -> io::Result<Socket> {
    Ok(match address {
        ServerAddress::Tcp(address, _) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            // Detects within seconds that the server is gone, although a statement may run for hours without traffic.
            let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(10));
            let keepalive = keepalive.with_interval(Duration::from_secs(3)).with_retries(3);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
            socket(stream)
        }
        ServerAddress::Unix(path) => socket(UnixStream::connect(path).await?),
    })
}
