//! A database in which jobs run: how to connect to it, idle connections for the next job, and how to cancel a
//! statement.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, UnixStream, lookup_host},
    time::timeout,
};
use tokio_postgres::{
    CancelToken,
    config::{Host, SslMode, TargetSessionAttrs},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    login::{Socket, log_in, socket},
    wire::{Broken, Message, Wire},
};
use howdah_server::{
    config::Dsn,
    store::{describe_error, tls_connector},
};

/// The time limit for looking up a name, a connection, TLS and the login.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A connection that was idle for longer is not used again.
const IDLE: Duration = Duration::from_secs(300);
/// Makes the server check this often whether we are still connected, so that a statement ends when its worker is gone.
const LOOK_FOR_US: &str = "SET client_connection_check_interval = '5s'";

/// One database, by the name that jobs use.
pub struct Database {
    dsn: Dsn,
    connector: MakeRustlsConnect,
    idle: Mutex<Vec<(Instant, Connection)>>,
    /// Names of the server's built-in types.
    pub(super) types: Mutex<HashMap<(u32, i32), String>>,
}

impl std::fmt::Debug for Database {
    /// The address is not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

/// A connection for one job at a time.
pub(super) struct Connection {
    pub(super) wire: Wire,
    /// Whether the server checks that we are still connected.
    pub(super) looks_for_us: bool,
    token: CancelToken,
    address: ServerAddress,
}

/// The address of a server. A request to cancel must go to the same one.
#[derive(Clone, Debug)]
enum ServerAddress {
    Tcp(SocketAddr, String),
    Unix(PathBuf),
}

impl Database {
    /// From a connection string. It does not connect yet.
    pub fn new(dsn: &str) -> Result<Self, String> {
        let dsn = Dsn::parse(dsn)?;
        let connector = tls_connector(&dsn)?;
        Ok(Self { dsn, connector, idle: Mutex::default(), types: Mutex::default() })
    }

    /// Whether the connection string sets an application name.
    pub(super) fn is_named(&self) -> bool {
        self.dsn.config.get_application_name().is_some_and(|name| name != "howdah")
    }

    /// An idle connection of an earlier job.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|(since, _)| since.elapsed() < IDLE);
        idle.pop().map(|(_, connection)| connection)
    }

    /// Returns a connection whose session is clean.
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

    /// A new connection; `most` is its largest message.
    pub(super) async fn connect(&self, most: usize) -> Result<Connection, String> {
        let mut last = "the connection string has no host".to_owned();
        for address in self.addresses().await? {
            last = match timeout(CONNECT_WITHIN, self.connect_to(&address, most)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(problem)) => problem,
                Err(_) => format!("no answer within {CONNECT_WITHIN:?}"),
            };
        }
        Err(last)
    }

    async fn connect_to(&self, address: &ServerAddress, most: usize) -> Result<Connection, String> {
        let socket = open(address).await.map_err(|error| describe_error(&error))?;
        let mut config = self.dsn.config.clone();
        let mut connector = self.connector.clone();
        let name = match address {
            ServerAddress::Tcp(_, name) => name.as_str(),
            ServerAddress::Unix(_) => {
                config.ssl_mode(SslMode::Disable);
                "localhost"
            }
        };
        let tls = MakeTlsConnect::<Socket>::make_tls_connect(&mut connector, name).map_err(|e| describe_error(&e))?;
        let (socket, token) = log_in(socket, tls, &config).await.map_err(|error| describe_error(error.as_ref()))?;
        let mut wire = Wire::new(socket, most);
        self.check_target(&mut wire).await?;
        let looks_for_us = match wire.query(LOOK_FOR_US, |_| Ok(())).await {
            Ok(finished) => finished.problem.is_none(),
            Err(broken) => return Err(broken.describe()),
        };
        Ok(Connection { wire, looks_for_us, token, address: address.clone() })
    }

    /// Of several hosts, the one that accepts writes is used, or the one that `target_session_attrs` asks for. A single
    /// host is used as it is.
    async fn check_target(&self, wire: &mut Wire) -> Result<(), String> {
        let config = &self.dsn.config;
        let wanted = match config.get_target_session_attrs() {
            TargetSessionAttrs::ReadWrite => "off",
            TargetSessionAttrs::ReadOnly => "on",
            _ => return Ok(()),
        };
        if config.get_hosts().len().max(config.get_hostaddrs().len()) < 2 {
            return Ok(());
        }
        let mut found = None;
        let shown = wire.query("SHOW transaction_read_only", |message| {
            if let Message::Row(row) = message {
                found = row.values().next().flatten();
            }
            Ok(())
        });
        shown.await.map_err(Broken::describe)?;
        match found {
            Some(found) if found != wanted => Err("it is not what target_session_attrs asks for".into()),
            _ => Ok(()),
        }
    }

    /// The addresses of the hosts, in their order.
    async fn addresses(&self) -> Result<Vec<ServerAddress>, String> {
        let config = &self.dsn.config;
        let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let port = |n: usize| ports.get(n).or(ports.first()).copied().unwrap_or(5432);
        let mut servers = Vec::new();
        let mut unknown = None;
        for n in 0..hosts.len().max(addresses.len()) {
            match (addresses.get(n), hosts.get(n)) {
                (Some(address), host) => {
                    let name = match host {
                        Some(Host::Tcp(name)) => name.clone(),
                        _ => address.to_string(),
                    };
                    servers.push(ServerAddress::Tcp((*address, port(n)).into(), name));
                }
                (None, Some(Host::Tcp(name))) => match lookup_host((name.as_str(), port(n))).await {
                    Ok(found) => servers.extend(found.map(|address| ServerAddress::Tcp(address, name.clone()))),
                    Err(error) => unknown = Some(error.to_string()),
                },
                (None, Some(Host::Unix(dir))) => {
                    servers.push(ServerAddress::Unix(dir.join(format!(".s.PGSQL.{}", port(n)))));
                }
                (None, None) => {}
            }
        }
        match unknown {
            Some(error) if servers.is_empty() => Err(error),
            _ => Ok(servers),
        }
    }

    /// Asks the server to cancel the connection's statement. The request may come too late, or too early.
    pub(super) async fn cancel(&self, way: &CancelWay) -> Result<(), String> {
        let cancelling = async {
            let socket = open(&way.address).await.map_err(|error| describe_error(&error))?;
            let mut connector = self.connector.clone();
            let name = match &way.address {
                ServerAddress::Tcp(_, name) => name.as_str(),
                ServerAddress::Unix(_) => "localhost",
            };
            let tls =
                MakeTlsConnect::<Socket>::make_tls_connect(&mut connector, name).map_err(|e| describe_error(&e))?;
            way.token.cancel_query_raw(socket, tls).await.map_err(|error| describe_error(&error))
        };
        match timeout(CONNECT_WITHIN, cancelling).await {
            Ok(done) => done,
            Err(_) => Err(format!("no answer within {CONNECT_WITHIN:?}")),
        }
    }
}

/// How to cancel a connection's statement.
pub(super) struct CancelWay {
    token: CancelToken,
    address: ServerAddress,
}

impl Connection {
    pub(super) fn cancel_way(&self) -> CancelWay {
        CancelWay { token: self.token.clone(), address: self.address.clone() }
    }
}

async fn open(address: &ServerAddress) -> io::Result<Socket> {
    Ok(match address {
        ServerAddress::Tcp(address, _) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            // A lost server is noticed in seconds.
            let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(10));
            let keepalive = keepalive.with_interval(Duration::from_secs(3)).with_retries(3);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
            socket(stream)
        }
        ServerAddress::Unix(path) => socket(UnixStream::connect(path).await?),
    })
}
