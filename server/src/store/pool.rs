//! The pools. bb8's stock Postgres manager prepares nothing, queries at every checkout, and takes a
//! read-only former primary for healthy; so this is our own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio_postgres::{AsyncMessage, Client};

use super::{
    connection::Connection,
    error::StoreError,
    session::{self, Begin, ParamTypes, Session},
    tls,
};
use crate::{config::Dsn, error::describe};

/// What a pool's connections are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The statements of a job's way, with their plans pinned. The hot tables go from empty to millions
    /// and back, so statistics are always wrong, and a claim planned on an empty table would sort or
    /// scan for ever after. What is left with these settings is the index scan that each was made for.
    Hot,
    /// Everything for people; the planner is free.
    General,
}

/// What our SQL relies on, whatever the role or the database is set to. With another `search_path` anybody who may create a
/// function somewhere on it could have it called with our rights; the others change how values and texts are read and
/// written. (`default_transaction_read_only` is left as it is: that is somebody's will.)
macro_rules! session {
    ($more:literal) => {
        concat!(
            "SET search_path = pg_catalog, pg_temp; SET client_encoding = 'UTF8'; ",
            "SET standard_conforming_strings = on; SET transform_null_equals = off; SET array_nulls = on; ",
            "SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; ",
            "SET bytea_output = 'hex'; SET extra_float_digits = 1; ",
            "SET default_transaction_isolation = 'read committed'; SET default_transaction_deferrable = off; ",
            "SET jit = off; SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '30s'",
            $more
        )
    };
}

impl Purpose {
    /// Settings of a session.
    pub fn session(self) -> &'static str {
        match self {
            Self::Hot => session!(
                "; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; \
                 SET enable_nestloop = off; SET enable_mergejoin = off; \
                 SET plan_cache_mode = force_generic_plan; SET max_parallel_workers_per_gather = 0"
            ),
            Self::General => session!(""),
        }
    }
}

/// Makes and judges connections.
pub(super) struct Manager {
    dsn: Dsn,
    connector: tokio_postgres_rustls::MakeRustlsConnect,
    schema: String,
    purpose: Purpose,
    timeout: Duration,
    /// Behind a transaction pooler: what it needs instead of a session.
    shared: Option<(Arc<Begin>, ParamTypes)>,
    last_error: LastError,
}

/// Why the last attempt to connect failed: it belongs in the log and in the answers.
pub(super) type LastError = Arc<parking_lot::Mutex<Option<String>>>;

/// Waits between two attempts to connect: these double, and are random by half, so that brokers do not come together.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Postgres is found again so soon after it is back. (bb8 by itself waits up to half of its time.)
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Manager {
    /// With `pooled`, nothing is left in a session: it is another's after the transaction.
    pub(super) fn new(
        dsn: Dsn,
        schema: String,
        purpose: Purpose,
        timeout: Duration,
        pooled: bool,
        last_error: LastError,
    ) -> Result<Self, String> {
        let connector = tls::connector(&dsn)?;
        let shared = pooled.then(|| (Begin::of(purpose).into(), session::param_types()));
        Ok(Self { dsn, connector, schema, purpose, timeout, shared, last_error })
    }
}

impl bb8::ManageConnection for Manager {
    type Connection = Connection;
    type Error = StoreError;

    /// Tries until it succeeds, or for as long as callers wait for it.
    async fn connect(&self) -> Result<Connection, StoreError> {
        let (begun, mut wait) = (Instant::now(), FIRST_WAIT);
        loop {
            let error = match self.connect_once().await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            tracing::warn!(%error, "no connection to Postgres");
            *self.last_error.lock() = Some(error.to_string());
            if begun.elapsed() > self.timeout {
                return Err(error);
            }
            tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), StoreError> {
        connection.batch("").await
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_broken()
    }
}

impl Manager {
    async fn connect_once(&self) -> Result<Connection, StoreError> {
        let (client, driver) = open(&self.dsn, self.connector.clone(), None).await?;
        tokio::spawn(driver);
        let session = match self.shared.clone() {
            Some((begin, types)) => Session::Shared { begin, types, in_transaction: false },
            None => Session::own(),
        };
        let mut connection = Connection::new(client, self.schema.clone(), session, self.timeout);
        if self.shared.is_none() {
            connection.batch(self.purpose.session()).await?;
        }
        Ok(connection)
    }
}

/// Where the notifications of a connection go; a full channel drops them, they are hints.
pub(crate) type Notifications = tokio::sync::mpsc::Sender<tokio_postgres::Notification>;

/// Opens a connection; the second part must be polled for anything to happen, and ends with it.
pub async fn open(
    dsn: &Dsn,
    connector: tokio_postgres_rustls::MakeRustlsConnect,
    notifications: Option<Notifications>,
) -> Result<(Client, BoxFuture<'static, ()>), StoreError> {
    // connect_timeout is for each address and does not cover the handshake.
    let connecting = tokio::time::timeout(Duration::from_secs(10), dsn.config.connect(connector));
    let (client, mut connection) = match connecting.await {
        Ok(Ok(pair)) => pair,
        Ok(Err(error)) => return Err(StoreError::NotSent(describe(&error))),
        Err(_) => return Err(StoreError::NotSent("no answer within 10 s".into())),
    };
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
    Ok((client, driver.boxed()))
}
