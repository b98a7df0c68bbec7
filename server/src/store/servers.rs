//! The servers of one database, of which one is the primary. All are asked at once: one that does not answer, because it is
//! frozen or cut off, must not keep anybody from the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt as _},
};
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    error::{Cause, StoreError},
    outage::Outage,
    pool::{Notifications, open},
    timeline::{Latest, Timeline},
    tls,
};
use crate::config::Dsn;

/// The servers that a connection string names.
pub(super) struct Servers {
    /// A connection string for each.
    each: Vec<Dsn>,
    connector: MakeRustlsConnect,
    /// Which of them is the primary, if there are several and each connection leads to one of them for good.
    latest: Option<Arc<Latest>>,
    is_asking: AtomicBool,
}

/// A connection, not set up yet, and what it leads to.
pub(super) struct Opened {
    pub(super) client: Client,
    /// Must be polled for anything to happen, and ends with the connection.
    pub(super) driver: BoxFuture<'static, ()>,
    pub(super) primary: Primary,
}

/// The first pause between two attempts to connect. Pauses double, and half of each is random, so that brokers do not
/// come together.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// The longest pause: Postgres is found this soon after it is back. (bb8 itself waits up to half of its timeout.)
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// After the first answer of a primary: until the others have answered, too. One of them may have been promoted since.
const OTHERS: Duration = Duration::from_millis(250);
/// After so long without an answer to a statement, the servers are asked who the primary is.
const DOUBT: Duration = Duration::from_secs(1);
/// How long that may take.
const ASKING: Duration = Duration::from_secs(5);

/// An attempt at a server, by its number in the list and the number of the attempt.
type Attempt<'a> = BoxFuture<'a, (usize, u32, Result<Opened, StoreError>)>;

impl Servers {
    /// With `pooled`, a connection leads to a pooler, which may have another server behind it at any time.
    pub(super) fn new(dsn: &Dsn, latest: &Arc<Latest>, pooled: bool) -> Result<Arc<Self>, String> {
        let each = dsn.each_host();
        let latest = (each.len() > 1 && !pooled).then(|| latest.clone());
        Ok(Arc::new(Self { connector: tls::connector(dsn)?, each, latest, is_asking: AtomicBool::new(false) }))
    }

    /// Tries until one of them is found that takes writes, or for so long.
    pub(super) async fn connect(
        self: &Arc<Self>,
        limit: Duration,
        notifications: Option<&Notifications>,
        outage: &Outage,
    ) -> Result<Opened, StoreError> {
        let begun = Instant::now();
        let mut attempts: FuturesUnordered<Attempt<'_>> =
            (0..self.each.len()).map(|n| self.attempt(n, 0, notifications)).collect();
        let mut errors: Vec<Option<StoreError>> = vec![None; self.each.len()];
        while let Some((n, number, result)) = attempts.next().await {
            let error = match result {
                Ok(opened) => return Ok(self.best(opened, n, &errors, attempts).await),
                Err(error) => error,
            };
            errors[n] = Some(error);
            // Of several, all but one refuse, which is nothing to speak of before that one has had its time to answer.
            let known = self.each.len() == 1 || number > 0;
            if let Some(error) = known.then(|| self.describe(&errors)).flatten() {
                outage.failed("connecting to Postgres", &error);
                *outage.last_error.lock() = Some(error.to_string());
            }
            if begun.elapsed() <= limit {
                attempts.push(self.attempt(n, number + 1, notifications));
            }
        }
        Err(self.describe(&errors).unwrap_or_else(|| StoreError::NotSent("no server is named".into())))
    }

    fn attempt<'a>(
        self: &'a Arc<Self>,
        n: usize,
        number: u32,
        notifications: Option<&'a Notifications>,
    ) -> Attempt<'a> {
        Box::pin(async move {
            if let Some(before) = number.checked_sub(1) {
                let wait = FIRST_WAIT.saturating_mul(1 << before.min(8)).min(LONGEST_WAIT);
                tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
            }
            (n, number, self.open(&self.each[n], notifications.cloned()).await)
        })
    }

    /// Connects to one, if it takes writes and no other was promoted after it.
    async fn open(self: &Arc<Self>, dsn: &Dsn, notifications: Option<Notifications>) -> Result<Opened, StoreError> {
        let (client, mut driver) = open(dsn, self.connector.clone(), notifications).await?;
        let Some(latest) = &self.latest else {
            return Ok(Opened { client, driver, primary: Primary(None) });
        };
        let asking = tokio::time::timeout(ASKING, Timeline::of(&client));
        let timeline = tokio::select! {
            () = &mut driver => return Err(StoreError::NotSent("the connection ended".into())),
            asked = asking => asked.map_err(|_| StoreError::NotSent(format!("no answer within {ASKING:?}").into()))?,
        };
        let Some(timeline) = timeline else {
            return Ok(Opened { client, driver, primary: Primary(None) });
        };
        if !latest.admits(timeline) {
            return Err(StoreError::NotSent("it is a former primary: another server was promoted after it".into()));
        }
        Ok(Opened { client, driver, primary: Primary(Some((self.clone(), timeline))) })
    }

    /// The one that was promoted last, of the first and those that answer soon and have not yet.
    async fn best(
        &self,
        first: Opened,
        n: usize,
        errors: &[Option<StoreError>],
        mut attempts: FuturesUnordered<Attempt<'_>>,
    ) -> Opened {
        let mut best = first;
        let mut silent: Vec<usize> =
            (0..errors.len()).filter(|other| *other != n && errors[*other].is_none()).collect();
        let others = async {
            while !silent.is_empty()
                && let Some((n, _, result)) = attempts.next().await
            {
                silent.retain(|other| *other != n);
                if let Ok(other) = result
                    && other.primary.is_after(&best.primary)
                {
                    best = other;
                }
            }
        };
        let _ = tokio::time::timeout(OTHERS, others).await;
        best
    }

    /// The errors of all; of several, each with its server.
    fn describe(&self, errors: &[Option<StoreError>]) -> Option<StoreError> {
        if let [error] = errors {
            return error.clone();
        }
        let each = self.each.iter().zip(errors).filter_map(|(dsn, error)| {
            let (StoreError::NotSent(cause) | StoreError::RolledBack(cause)) = error.as_ref()? else {
                return Some(format!("{}: {}", dsn.server(), error.as_ref()?));
            };
            Some(format!("{}: {cause}", dsn.server()))
        });
        let all = each.collect::<Vec<_>>().join("; ");
        (!all.is_empty()).then(|| StoreError::NotSent(Cause::foreign(all)))
    }

    /// Asks all of them whether another one was promoted, unless that is being done.
    fn ask_all(self: &Arc<Self>) {
        if self.is_asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let servers = self.clone();
        tokio::spawn(async move {
            let each = servers.each.iter().map(|dsn| servers.open(dsn, None));
            // A standby refuses: there is nothing to learn from it.
            let asking = futures::future::join_all(each);
            let _ = tokio::time::timeout(DOUBT, asking).await;
            servers.is_asking.store(false, Ordering::Release);
        });
    }
}

/// What a connection leads to: a primary for as long as no other server is promoted. Of a single server it is not asked.
#[derive(Clone)]
pub(super) struct Primary(Option<(Arc<Servers>, Timeline)>);

impl Primary {
    /// Whether another server was promoted after this one.
    pub(super) fn is_former(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|(servers, timeline)| servers.latest.as_ref().is_some_and(|latest| latest.is_after(*timeline)))
    }

    fn is_after(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some((_, this)), Some((_, other))) => this.is_after(*other),
            _ => false,
        }
    }

    /// Returns when another server was promoted, as far as anybody asks.
    pub(super) async fn until_former(&self) {
        let Some((servers, timeline)) = &self.0 else { return std::future::pending().await };
        let Some(latest) = &servers.latest else { return std::future::pending().await };
        loop {
            let changed = latest.changed();
            if latest.is_after(*timeline) {
                return;
            }
            changed.await;
        }
    }

    /// The same for whoever waits for an answer: the servers are asked once a second, beginning a second from now.
    pub(super) async fn until_known_former(&self) {
        let Some((servers, _)) = &self.0 else { return std::future::pending().await };
        let former = self.until_former();
        tokio::pin!(former);
        while tokio::time::timeout(DOUBT, &mut former).await.is_err() {
            servers.ask_all();
        }
    }
}
