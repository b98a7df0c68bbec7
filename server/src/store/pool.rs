//! The pools. bb8's own manager for Postgres prepares nothing, sends a query at every checkout, and considers a
//! read-only former primary healthy. So this one is our own.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use tokio_postgres::{AsyncMessage, Client};

use super::{
    connection::Connection,
    error::{Cause, StoreError},
    locks::{self, Lane, Patience},
    outage::Outage,
    replica::LastChange,
    servers::{Opened, Servers},
    session::{self, Begin, ParamTypes, Session},
};
use crate::{config::Dsn, error::describe};

/// The purpose of a pool's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The statements of jobs, with pinned plans. The hot tables go from empty to millions of rows and back, so
    /// statistics are always wrong: a claim planned on an empty table would sort or scan ever after. These settings
    /// leave only the index scan that each statement was written for.
    Hot,
    /// Everything for operators; the planner is free.
    General,
    /// The statements of jobs, for work that met somebody else's lock.
    Aside(Lane, Patience),
    /// LISTEN alone.
    Listen,
}

/// What our SQL relies on, whatever the role or the database is set to. With another `search_path` anybody who may create a
/// function somewhere on it could have it called with our rights; the others change how values and texts are read and
/// written. (`default_transaction_read_only` is left as it is: that is somebody's will.)
const SESSION: &str = "SET search_path = pg_catalog, pg_temp; SET client_encoding = 'UTF8'; \
                       SET standard_conforming_strings = on; SET transform_null_equals = off; SET array_nulls = on; \
                       SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; \
                       SET bytea_output = 'hex'; SET extra_float_digits = 1; \
                       SET default_transaction_isolation = 'read committed'; \
                       SET default_transaction_deferrable = off; SET jit = off; SET statement_timeout = '30s'; \
                       SET idle_in_transaction_session_timeout = '30s'";

/// What pins the plans.
const PINNED: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; \
                      SET enable_nestloop = off; SET enable_mergejoin = off; \
                      SET plan_cache_mode = force_generic_plan; SET max_parallel_workers_per_gather = 0";

impl Purpose {
    /// Settings of a session.
    pub fn session(self) -> String {
        let ms = |timeout: Duration| timeout.as_millis();
        match self {
            Self::Hot => format!("{SESSION}; {PINNED}; SET lock_timeout = {}", ms(locks::HOT)),
            Self::General => format!("{SESSION}; SET lock_timeout = {}", ms(locks::GENERAL)),
            Self::Aside(lane, patience) => format!(
                "{SESSION}; {PINNED}; SET lock_timeout = {}; SET application_name = '{}'",
                ms(lane.longest(patience)),
                lane.application_name()
            ),
            // It is silent for as long as nothing happens.
            Self::Listen => format!("{SESSION}; SET idle_session_timeout = 0"),
        }
    }
}

/// Opens and checks connections.
pub(super) struct Manager {
    servers: Arc<Servers>,
    schema: String,
    purpose: Purpose,
    timeout: Duration,
    /// Behind a transaction pooler: what it needs instead of a session.
    shared: Option<(Arc<Begin>, ParamTypes)>,
    outage: Arc<Outage>,
    last_change: Arc<LastChange>,
}

impl Manager {
    /// With `pooled`, nothing is left in a session: after the transaction another client has it.
    pub(super) fn new(
        servers: Arc<Servers>,
        schema: String,
        purpose: Purpose,
        timeout: Duration,
        pooled: bool,
        outage: Arc<Outage>,
        last_change: Arc<LastChange>,
    ) -> Self {
        let shared = pooled.then(|| (Begin::of(purpose).into(), session::param_types()));
        Self { servers, schema, purpose, timeout, shared, outage, last_change }
    }
}

impl bb8::ManageConnection for Manager {
    type Connection = Connection;
    type Error = StoreError;

    /// Tries until it succeeds, or for as long as callers wait for it.
    async fn connect(&self) -> Result<Connection, StoreError> {
        let Opened { client, driver, primary } = self.servers.connect(self.timeout, None, &self.outage).await?;
        // Idle ones, too, are closed when another server is promoted.
        let leads_to = primary.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = driver => {}
                () = leads_to.until_former() => {}
            }
        });
        let session = match self.shared.clone() {
            Some((begin, types)) => Session::Shared { begin, types, in_transaction: false },
            None => Session::own(),
        };
        let mut connection =
            Connection::new(client, self.schema.clone(), session, self.timeout, primary, self.last_change.clone());
        if self.shared.is_none() {
            connection.batch(&self.purpose.session()).await?;
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

/// Receives the notifications of a connection. If the channel is full they are dropped: they are hints.
pub(crate) type Notifications = tokio::sync::mpsc::Sender<tokio_postgres::Notification>;

/// Opens a connection. The second part must be polled for anything to happen, and ends with the connection.
pub async fn open(
    dsn: &Dsn,
    connector: tokio_postgres_rustls::MakeRustlsConnect,
    notifications: Option<Notifications>,
) -> Result<(Client, BoxFuture<'static, ()>), StoreError> {
    // connect_timeout applies to each address, and not to the handshake.
    let connecting = tokio::time::timeout(Duration::from_secs(10), dsn.config.connect(connector));
    let (client, mut connection) = match connecting.await {
        Ok(Ok(pair)) => pair,
        Ok(Err(error)) => return Err(StoreError::NotSent(Cause::foreign(describe(&error)))),
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
