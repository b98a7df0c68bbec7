//! Connections: the manager of the pools, the LISTEN connection, and the connection limits of the server. The manager replaces bb8's own one for Postgres, which prepares no
//! statements, sends a query at each checkout, and treats a read-only former primary as healthy.

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use howdah_core::{config::Dsn, error::describe};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, Notification};

use super::{
    Statement, Store,
    connection::Connection,
    error::{Cause, StoreError},
    locks::{self, Lane, LockWait},
    replica::LastChange,
    servers::{Opened, Primary, Servers},
    session::{self, Begin, ParamTypes, Session},
};

/// Purpose of a connection, which decides its session settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Statements on jobs, with planner settings that pin their plans. The job tables go from empty to millions of rows
    /// and back, so planner statistics are always wrong: a claim planned on an empty table would later sort or scan
    /// millions of rows. The settings leave only the index scan for which each statement is written.
    Hot,
    /// Statements for operators, with an unrestricted planner.
    General,
    /// Statements on jobs in a side lane, for requests that another transaction's lock has blocked.
    SideLane(Lane, LockWait),
    /// The LISTEN connection for notifications.
    Listen,
}

/// Session settings that the SQL of Howdah requires, whatever the role or the database sets. With another
/// `search_path`, the broker might call functions that another role has created in one of its schemas. The other
/// settings change how values are read and written. `default_transaction_read_only` is not set, because an operator may
/// have set it on purpose.
const SESSION: &str = "SET search_path = pg_catalog, pg_temp; SET client_encoding = 'UTF8'; \
                       SET standard_conforming_strings = on; SET transform_null_equals = off; SET array_nulls = on; \
                       SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; \
                       SET bytea_output = 'hex'; SET extra_float_digits = 1; \
                       SET default_transaction_isolation = 'read committed'; \
                       SET default_transaction_deferrable = off; SET jit = off; SET statement_timeout = '30s'; \
                       SET idle_in_transaction_session_timeout = '30s'";

/// First major version of Postgres with `transaction_timeout`.
const TRANSACTION_TIMEOUT: u32 = 17;

/// Planner settings that pin the plans of statements on jobs.
const PINNED: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; \
                      SET enable_nestloop = off; SET enable_mergejoin = off; \
                      SET plan_cache_mode = force_generic_plan; SET max_parallel_workers_per_gather = 0";

impl Purpose {
    /// Returns SQL that sets up a session on a server of this major version.
    pub fn session(self, version: u32) -> String {
        let ms = |timeout: Duration| timeout.as_millis();
        let settings = match self {
            Self::Hot => format!("{SESSION}; {PINNED}; SET lock_timeout = {}", ms(locks::HOT)),
            Self::General => format!("{SESSION}; SET lock_timeout = {}", ms(locks::GENERAL)),
            Self::SideLane(lane, lock_wait) => format!(
                "{SESSION}; {PINNED}; SET lock_timeout = {}; SET application_name = '{}'",
                ms(lane.longest(lock_wait)),
                lane.application_name()
            ),
            // The LISTEN session is idle until a notification arrives, so an idle timeout would end the session.
            Self::Listen => format!("{SESSION}; SET idle_session_timeout = 0"),
        };
        // Each statement has its own timeout. The role's `transaction_timeout` is switched off, because transactions of
        // several statements and migrations may exceed it.
        if version >= TRANSACTION_TIMEOUT { format!("{settings}; SET transaction_timeout = 0") } else { settings }
    }
}

/// bb8 connection manager: opens and checks connections.
pub(super) struct Manager {
    servers: Arc<Servers>,
    schema: String,
    purpose: Purpose,
    timeout: Duration,
    /// Cached parameter types of statements, because sessions behind a transaction pooler keep no prepared statements.
    /// `None` for direct connections.
    shared: Option<ParamTypes>,
    last_change: Arc<LastChange>,
}

impl Manager {
    /// Creates the connection manager. `pooled` means that a transaction pooler is in between: a session then keeps no
    /// state, because another client gets the session after each transaction.
    pub(super) fn new(
        servers: Arc<Servers>,
        schema: String,
        purpose: Purpose,
        timeout: Duration,
        pooled: bool,
        last_change: Arc<LastChange>,
    ) -> Self {
        let shared = pooled.then(session::param_types);
        Self { servers, schema, purpose, timeout, shared, last_change }
    }
}

impl bb8::ManageConnection for Manager {
    type Connection = Connection;
    type Error = StoreError;

    /// Opens a connection and sets up its session. Retries for up to the database timeout, because callers wait that
    /// long for a connection.
    async fn connect(&self) -> Result<Connection, StoreError> {
        let Opened { client, driver, primary, version } = self.servers.connect(self.timeout, None).await?;
        // The driver task ends when another server is promoted, which closes the connection to the former primary even
        // if it is idle.
        let leads_to = primary.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = driver => {}
                () = leads_to.until_former() => {}
            }
        });
        let session = match self.shared.clone() {
            Some(types) => Session::Shared { begin: Begin::new(self.purpose, version), types, in_transaction: false },
            None => Session::own(),
        };
        let mut connection =
            Connection::new(client, self.schema.clone(), session, self.timeout, primary, self.last_change.clone());
        if self.shared.is_none() {
            connection.batch(&self.purpose.session(version)).await?;
        }
        Ok(connection)
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), StoreError> {
        connection.batch("").await
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_broken()
    }
}

/// A connection that listens for notifications.
pub struct Listener {
    notifications: mpsc::Receiver<Notification>,
    // The connection closes when the client is dropped.
    _client: Client,
    driver: BoxFuture<'static, ()>,
    primary: Primary,
}

impl Store {
    /// Listens on a channel. Notifications sent earlier are lost, so the caller checks for work after this call. The
    /// application name of the session contains the broker id, so that other brokers can end the session once this
    /// broker's row has expired. Otherwise the session of a frozen broker, which reads no notifications, would hold
    /// back VACUUM with its snapshot.
    pub async fn listen(&self, channel: &str, broker: Option<i32>) -> Result<Listener, StoreError> {
        // If the channel is full, further notifications are dropped. The sweep (the search for work once per poll
        // interval) finds the work that these notifications announced.
        let (sender, notifications) = mpsc::channel(4096);
        let opened = self.listen_servers.connect(self.timeout, Some(&sender)).await?;
        let Opened { client, mut driver, primary, version } = opened;
        let begin = async {
            client.batch_execute(&Purpose::Listen.session(version)).await?;
            if let Some(id) = broker {
                let name = format!("SET application_name = 'howdah listener {id} {}'", self.schema);
                client.batch_execute(&name).await?;
            }
            client.batch_execute(&format!("LISTEN {channel}")).await
        };
        let listening = tokio::time::timeout(self.timeout, begin);
        tokio::select! {
            () = &mut driver => Err(StoreError::NotSent("the connection ended".into())),
            result = listening => match result {
                Ok(Ok(())) => Ok(Listener { notifications, _client: client, driver, primary }),
                Ok(Err(error)) => Err(StoreError::from_postgres(&error)),
                Err(_) => Err(StoreError::NotSent(format!("no answer within {:?}", self.timeout).into())),
            }
        }
    }
}

impl Listener {
    /// Returns the payload of the next notification. `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<String> {
        tokio::select! {
            biased;
            notification = self.notifications.recv() => notification.map(|n| n.payload().to_owned()),
            () = &mut self.driver => None,
            () = self.primary.until_former() => None,
        }
    }
}

/// Channel for the notifications of a connection. While the channel is full, notifications are dropped, because the
/// sweep (the regular search for work) replaces them.
pub(crate) type Notifications = mpsc::Sender<Notification>;

/// Opens a connection. Returns the client, the driver and the major version of the server. The driver must be polled
/// for the client to make progress, and ends with the connection.
pub async fn open(
    dsn: &Dsn,
    connector: tokio_postgres_rustls::MakeRustlsConnect,
    notifications: Option<Notifications>,
) -> Result<(Client, BoxFuture<'static, ()>, u32), StoreError> {
    // The setting connect_timeout applies to each address and does not cover the TLS and login handshake, so this
    // timeout bounds the whole attempt.
    let connecting = tokio::time::timeout(Duration::from_secs(10), dsn.config.connect(connector));
    let (client, mut connection) = match connecting.await {
        Ok(Ok(pair)) => pair,
        Ok(Err(error)) => return Err(StoreError::NotSent(Cause::of_connecting(&error))),
        Err(_) => return Err(StoreError::NotSent("no connection within 10 s".into())),
    };
    let version = connection.parameter("server_version").and_then(major).unwrap_or_default();
    let driver = async move {
        loop {
            match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    if let Some(sender) = &notifications {
                        let _ = sender.try_send(notification);
                    }
                }
                Some(Ok(AsyncMessage::Notice(notice))) => {
                    tracing::debug!(severity = notice.severity(), message = notice.message(), "notice from Postgres");
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(error = %describe(&error), "connection to Postgres ended");
                    return;
                }
                None => return,
            }
        }
    };
    Ok((client, driver.boxed(), version))
}

/// Parses the major version from texts such as `17.2 (Debian 17.2-1)` or `18beta1`.
fn major(version: &str) -> Option<u32> {
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version.get(..digits)?.parse().ok()
}

/// Maximum number of connections of a broker to one store outside the hot pool: side lanes, 4 for operators' calls, 1
/// for LISTEN.
const BESIDES_POOL: u32 = locks::CONNECTIONS + 4 + 1;

/// A connection limit and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Maximum number of connections. Negative if there is no limit.
    pub most: i64,
    /// Number of open connections.
    pub open: i64,
}

/// Connection limits of the role, the database and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Name of the broker's database role.
    pub role_name: String,
    /// Limit of the role (`rolconnlimit`).
    pub role: Limit,
    /// Limit of the database (`datconnlimit`).
    pub database: Limit,
    /// Limit of the server: `max_connections` without connections reserved for superusers.
    pub server: Limit,
}

impl fmt::Display for ConnectionLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |limit: Limit| match limit.most {
            ..0 => format!("{} (no limit)", limit.open),
            most => format!("{} of {most}", limit.open),
        };
        let Self { role_name, role, database, server } = self;
        write!(
            f,
            "role {role_name} has {} connections, the database {}, the server {}",
            limit(*role),
            limit(*database),
            limit(*server)
        )
    }
}

impl Store {
    /// Returns the maximum number of connections that a broker opens to one store.
    #[must_use]
    pub const fn most_connections(pool_size: u32) -> u32 {
        pool_size + BESIDES_POOL
    }

    /// Queries the connection limits and their usage, through a connection of the hot pool.
    pub async fn connection_limits(&self) -> Result<ConnectionLimits, StoreError> {
        let row = self.hot().await?.query_one(Statement::ConnectionLimits, &[]).await?;
        let limit = |most: &str, open: &str| Limit { most: i64::from(row.get::<_, i32>(most)), open: row.get(open) };
        Ok(ConnectionLimits {
            role_name: row.get("role"),
            role: limit("of_role", "in_role"),
            database: limit("of_database", "in_database"),
            server: limit("of_server", "in_server"),
        })
    }

    /// Waits until the role, the database or the server has no connection left for this store.
    pub(crate) async fn until_out_of_connections(&self) {
        self.breaker.until_out_of_connections().await;
    }
}
