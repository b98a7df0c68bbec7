//! The Postgres servers of one store: a primary and its standbys. Connection attempts go to all servers at once, so
//! that a frozen or unreachable server does not delay the search for the primary.

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
use howdah_core::config::Dsn;
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    circuit_breaker::CircuitBreaker,
    connect_backoff::{self, ConnectBackoff},
    error::{Cause, StoreError},
    pool::{Notifications, open},
    source::{Loaded, Source},
    timeline::{Latest, Timeline},
};

/// The Postgres servers that a connection string names.
pub(super) struct Servers {
    source: Source,
    /// Latest timeline that a server has reported. `None` if the connection string names a single server, or if a
    /// pooler is in between. Then former primaries are not detected.
    latest: Option<Arc<Latest>>,
    breaker: Arc<CircuitBreaker>,
    /// Backoff of connection attempts. Its lock serialises the attempts of all pools.
    backoff: tokio::sync::Mutex<ConnectBackoff>,
    is_probing: AtomicBool,
}

/// A new connection, before session setup, and its server.
pub(super) struct Opened {
    pub(super) client: Client,
    /// Future that runs the input and output of the connection. The client makes progress only while this future is
    /// polled. The future ends with the connection.
    pub(super) driver: BoxFuture<'static, ()>,
    pub(super) primary: Primary,
    /// Major version of the server. 0 if it is unknown.
    pub(super) version: u32,
}

/// Time to wait for other servers after the first primary has answered. That server may be a former primary, and the
/// new primary may answer later.
const WAIT_FOR_OTHERS: Duration = Duration::from_millis(250);
/// Time without an answer to a statement after which all servers are probed for liveness and promotions.
const PROBE_AFTER: Duration = Duration::from_millis(750);
/// Longest pause between two probes during one slow statement. With a single server the pauses double up to this value,
/// because a slow statement is usually no failure.
const MAX_PROBE_AFTER: Duration = Duration::from_secs(8);
/// Time after which an unanswered connection attempt counts as failed for the circuit breaker, although the attempt
/// continues.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Timeout of the query for the timeline.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Length of one of the steps into which a timeout is divided.
const STEP: Duration = Duration::from_millis(50);
/// Maximum duration of a timeout on a busy machine, as a multiple of the nominal duration.
const MOST_BUSY: u32 = 4;

/// Returns the output of a future, or `None` after the timeout. The timeout is counted in short steps, and a step that
/// takes too long counts once. So the timeout is longer on a busy processor, which delays this process as well as the
/// answers of Postgres.
async fn within<T>(timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
    let begun = Instant::now();
    tokio::pin!(future);
    for _ in 0..timeout.div_duration_f64(STEP) as u32 {
        if let Ok(output) = tokio::time::timeout(STEP, &mut future).await {
            return Some(output);
        }
        if begun.elapsed() >= MOST_BUSY * timeout {
            break;
        }
    }
    None
}

/// An attempt to connect to a server. Returns the index of the server, the number of earlier attempts at it, and the
/// result.
type Attempt<'a> = BoxFuture<'a, (usize, u32, Result<Opened, StoreError>)>;

impl Servers {
    /// Creates the set of servers. `pooled` means that a pooler may route each connection to any server, so timelines
    /// are not compared.
    pub(super) fn new(
        source: Source,
        latest: &Arc<Latest>,
        pooled: bool,
        breaker: Arc<CircuitBreaker>,
    ) -> Result<Arc<Self>, String> {
        let loaded = source.load()?;
        let latest = (loaded.each.len() > 1 && !pooled).then(|| latest.clone());
        let backoff = tokio::sync::Mutex::default();
        Ok(Arc::new(Self { source, latest, breaker, backoff, is_probing: AtomicBool::new(false) }))
    }

    /// Connects to the server that accepts writes. Retries until it succeeds or the time `limit` is over.
    pub(super) async fn connect(
        self: &Arc<Self>,
        limit: Duration,
        notifications: Option<&Notifications>,
    ) -> Result<Opened, StoreError> {
        let until = Instant::now() + limit;
        loop {
            let Ok(mut backoff) = tokio::time::timeout_at(until.into(), self.backoff.lock()).await else {
                return Err(self.breaker.error());
            };
            backoff.pause().await;
            let error = match self.try_all(&mut backoff, notifications).await {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            drop(backoff);
            self.probe();
            if Instant::now() >= until {
                return Err(error);
            }
        }
    }

    /// Tries to connect to all servers. A server that refuses is tried again until all servers have answered. Records
    /// the result in the backoff and the circuit breaker.
    async fn try_all(
        self: &Arc<Self>,
        backoff: &mut ConnectBackoff,
        notifications: Option<&Notifications>,
    ) -> Result<Opened, StoreError> {
        let begun = Instant::now();
        let result = match self.source.load_again() {
            Ok(loaded) => {
                let attempt = self.try_loaded(&loaded, notifications);
                tokio::pin!(attempt);
                if let Some(result) = within(ATTEMPT_TIMEOUT, &mut attempt).await {
                    result
                } else {
                    let silent = StoreError::NotSent(format!("no answer within {ATTEMPT_TIMEOUT:?}").into());
                    self.breaker.cannot_connect(begun, &silent);
                    attempt.await
                }
            }
            Err(problem) => Err(StoreError::NotSent(Cause::permanent(problem))),
        };
        let result = result.map_err(|error| self.source.name_file(error));
        match &result {
            Ok(_) => {
                backoff.succeeded();
                self.breaker.connected();
            }
            Err(error) => {
                self.source.failed();
                backoff.failed(error);
                self.breaker.cannot_connect(begun, error);
            }
        }
        result
    }

    async fn try_loaded(
        self: &Arc<Self>,
        loaded: &Loaded,
        notifications: Option<&Notifications>,
    ) -> Result<Opened, StoreError> {
        let begun = Instant::now();
        let mut attempts: FuturesUnordered<Attempt<'_>> =
            (0..loaded.each.len()).map(|n| self.attempt(loaded, n, 0, notifications)).collect();
        let mut errors: Vec<Option<StoreError>> = vec![None; loaded.each.len()];
        while let Some((n, number, result)) = attempts.next().await {
            let error = match result {
                Ok(opened) => return Ok(latest_primary(opened, n, &errors, attempts).await),
                Err(error) => error,
            };
            errors[n] = Some(error);
            if errors.iter().all(Option::is_some) {
                break;
            }
            // The refusing servers may be standbys. So their error is reported to the circuit breaker only after a
            // second attempt, when the silent server has had time to answer.
            if number > 0
                && let Some(error) = describe(loaded, &errors)
            {
                self.breaker.cannot_connect(begun, &error);
            }
            attempts.push(self.attempt(loaded, n, number + 1, notifications));
        }
        Err(describe(loaded, &errors)
            .unwrap_or_else(|| StoreError::NotSent("the connection string names no server".into())))
    }

    fn attempt<'a>(
        self: &'a Arc<Self>,
        loaded: &'a Loaded,
        n: usize,
        number: u32,
        notifications: Option<&'a Notifications>,
    ) -> Attempt<'a> {
        Box::pin(async move {
            if let Some(before) = number.checked_sub(1) {
                tokio::time::sleep(connect_backoff::short_pause(before)).await;
            }
            (n, number, self.open(&loaded.each[n], notifications.cloned()).await)
        })
    }

    /// Connects to one server. Fails if the server does not accept writes, or if a standby has been promoted in its place.
    async fn open(
        self: &Arc<Self>,
        (dsn, connector): &(Dsn, MakeRustlsConnect),
        notifications: Option<Notifications>,
    ) -> Result<Opened, StoreError> {
        let (client, mut driver, version) = open(dsn, connector.clone(), notifications).await?;
        let primary = |timeline| Primary { servers: self.clone(), timeline };
        let Some(latest) = &self.latest else {
            return Ok(Opened { client, driver, primary: primary(None), version });
        };
        let query = tokio::time::timeout(QUERY_TIMEOUT, Timeline::query(&client));
        let timeline = tokio::select! {
            () = &mut driver => return Err(StoreError::NotSent("the connection ended".into())),
            timeline = query => timeline.map_err(|_| StoreError::NotSent(format!("no answer within {QUERY_TIMEOUT:?}").into()))?,
        };
        let Some(timeline) = timeline else {
            return Ok(Opened { client, driver, primary: primary(None), version });
        };
        if !latest.record_contact(timeline) {
            return Err(StoreError::NotSent(
                "this server is a former primary: another server has been promoted".into(),
            ));
        }
        Ok(Opened { client, driver, primary: primary(Some(timeline)), version })
    }

    /// Opens connections to all servers once, to find out whether they answer and whether another one was promoted.
    /// Does nothing while a connection attempt is in progress.
    fn probe_once(self: &Arc<Self>) {
        let servers = self.clone();
        tokio::spawn(async move {
            let Ok(mut backoff) = servers.backoff.try_lock() else { return };
            if !backoff.is_due() {
                return;
            }
            let begun = Instant::now();
            let query = servers.try_all(&mut backoff, None);
            if within(PROBE_AFTER, query).await.is_none() {
                let error = StoreError::NotSent(format!("no answer within {PROBE_AFTER:?}").into());
                backoff.failed(&error);
                servers.breaker.cannot_connect(begun, &error);
            }
            drop(backoff);
            if servers.breaker.is_down() {
                servers.probe();
            }
        });
    }

    /// Retries in a background task until Postgres answers. While the circuit breaker is open, calls make no connection
    /// attempts, so only this task can close it.
    fn probe(self: &Arc<Self>) {
        if self.is_probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let servers = Arc::downgrade(self);
        tokio::spawn(async move {
            // The upgrade of the weak reference fails when the store is dropped, which ends the task.
            while let Some(servers) = servers.upgrade() {
                if !servers.breaker.is_down() {
                    return servers.is_probing.store(false, Ordering::Release);
                }
                let mut backoff = servers.backoff.lock().await;
                backoff.pause().await;
                if servers.breaker.is_down() {
                    let _ = servers.try_all(&mut backoff, None).await;
                }
            }
        });
    }
}

/// Returns the connection to the server that was promoted last, among the server of the connection `first` and other
/// servers that answer soon.
async fn latest_primary(
    first: Opened,
    n: usize,
    errors: &[Option<StoreError>],
    mut attempts: FuturesUnordered<Attempt<'_>>,
) -> Opened {
    let mut latest_primary = first;
    let mut silent: Vec<usize> = (0..errors.len()).filter(|other| *other != n && errors[*other].is_none()).collect();
    let others = async {
        while !silent.is_empty()
            && let Some((n, _, result)) = attempts.next().await
        {
            silent.retain(|other| *other != n);
            if let Ok(other) = result
                && other.primary.is_after(&latest_primary.primary)
            {
                latest_primary = other;
            }
        }
    };
    let _ = tokio::time::timeout(WAIT_FOR_OTHERS, others).await;
    latest_primary
}

/// Combines the errors of all servers. If there are several, each error names its server.
fn describe(loaded: &Loaded, errors: &[Option<StoreError>]) -> Option<StoreError> {
    if let [error] = errors {
        return error.clone();
    }
    let each = loaded.each.iter().zip(errors).filter_map(|((dsn, _), error)| {
        let (StoreError::NotSent(cause) | StoreError::RolledBack(cause)) = error.as_ref()? else {
            return Some(format!("{}: {}", dsn.server(), error.as_ref()?));
        };
        Some(format!("{}: {cause}", dsn.server()))
    });
    let all = each.collect::<Vec<_>>().join("; ");
    let permanent = errors.iter().all(|error| error.as_ref().is_some_and(StoreError::is_permanent));
    let cause = if permanent { Cause::permanent(all.clone()) } else { Cause::private(all.clone()) };
    (!all.is_empty()).then_some(StoreError::NotSent(cause))
}

/// The server of a connection, which is the primary until another server is promoted. `timeline` is `None` if the
/// timeline is unknown, as with a single server.
#[derive(Clone)]
pub(super) struct Primary {
    servers: Arc<Servers>,
    timeline: Option<Timeline>,
}

/// Reason to stop waiting for an answer on a connection.
pub(super) enum Lost {
    /// Another server was promoted.
    Former,
    /// The server answers no connection attempt.
    Silent,
}

impl Primary {
    /// Returns the circuit breaker of the server.
    pub(super) fn breaker(&self) -> &CircuitBreaker {
        &self.servers.breaker
    }

    fn known(&self) -> Option<(&Latest, Timeline)> {
        Some((self.servers.latest.as_deref()?, self.timeline?))
    }

    /// Whether another server was promoted after the server of this connection.
    pub(super) fn is_former(&self) -> bool {
        self.known().is_some_and(|(latest, timeline)| latest.is_after(timeline))
    }

    fn is_after(&self, other: &Self) -> bool {
        match (self.timeline, other.timeline) {
            (Some(this), Some(other)) => this.is_after(other),
            _ => false,
        }
    }

    /// Waits until a probe or connection attempt finds that another server was promoted.
    pub(super) async fn until_former(&self) {
        let Some((latest, timeline)) = self.known() else { return std::future::pending().await };
        loop {
            let changed = latest.changed();
            if latest.is_after(timeline) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the answer to a statement can no longer be expected: another server was promoted, or the circuit
    /// breaker is open. Meanwhile probes the servers from time to time.
    pub(super) async fn until_lost(&self) -> Lost {
        let lost = async {
            tokio::select! {
                () = self.until_former() => Lost::Former,
                () = self.servers.breaker.until_open() => Lost::Silent,
            }
        };
        tokio::pin!(lost);
        let mut probe_after = PROBE_AFTER;
        loop {
            match tokio::time::timeout(probe_after, &mut lost).await {
                Ok(lost) => return lost,
                Err(_) => self.servers.probe_once(),
            }
            if self.known().is_none() {
                probe_after = (probe_after * 2).min(MAX_PROBE_AFTER);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_in_which_the_process_is_blocked_does_not_count_for_a_timeout() {
        let (blocked, limit) = (Duration::from_millis(300), Duration::from_millis(250));
        let answer = async {
            std::thread::sleep(blocked);
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(within(limit, answer).await.is_some());
        assert!(within(limit, std::future::pending::<()>()).await.is_none());
    }
}
