//! Circuit breaker of a database: while Postgres does not answer, calls fail at once, and only few log lines report it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime},
};

use howdah_core::logging::ThrottleByKind;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{StoreError, error::Cause, sqlstate};

/// Time without an answer after which the circuit breaker opens. A short restart of Postgres takes less, so calls wait
/// for it.
const GRACE: Duration = Duration::from_secs(1);

/// State of a database, as statements and connection attempts have found it.
#[derive(Debug, Default)]
pub(crate) struct CircuitBreaker {
    down: watch::Sender<Option<Down>>,
    /// Whether the last connection attempt failed because no connection was left.
    out_of_connections: watch::Sender<bool>,
    last_error: Mutex<Option<StoreError>>,
    failures: AtomicU64,
    throttle: ThrottleByKind,
}

/// State of the database between a failed connection attempt and the next answer.
#[derive(Clone, Copy, Debug)]
struct Down {
    since: Instant,
    time: SystemTime,
    /// True if the server did not answer, or is starting or stopping. False if the server refused the login: open
    /// sessions may still work, so the circuit breaker stays closed.
    silent: bool,
}

impl CircuitBreaker {
    /// Records and logs the failure of a background task that will retry.
    pub(crate) fn log_failure(&self, what: &str, error: &StoreError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let kind = match error {
            // All tasks lose their connections at the same time. They share one kind of log line, so the throttle logs
            // the loss once and not once for each task.
            StoreError::NotSent(_) | StoreError::Unknown(_) => "a connection".into(),
            error if error.ends_session() => "a connection".into(),
            error => format!("{what} {}", error.code().unwrap_or_default()),
        };
        let is_known = matches!(error, StoreError::NotSent(_)) && self.is_down();
        match self.throttle.count(&kind) {
            Some(times) if !is_known => {
                tracing::warn!(%error, times, "{what} failed; trying again. {}", sqlstate::advice(error));
            }
            _ => tracing::debug!(%error, "{what} failed; trying again"),
        }
    }

    /// Records a failed connection attempt that started at `begun`.
    pub(super) fn cannot_connect(&self, begun: Instant, error: &StoreError) {
        let silent = error.code().is_none_or(sqlstate::ends_session) && !error.is_permanent();
        let down = Down { since: begun, time: SystemTime::now() - begun.elapsed(), silent };
        self.down.send_if_modified(|known| {
            let changes = known.is_none_or(|known| known.silent != silent);
            let before = known.unwrap_or(down);
            *known = Some(Down { silent, ..before });
            changes
        });
        self.out_of_connections.send_if_modified(|is_out| {
            std::mem::replace(is_out, error.is_out_of_connections()) != error.is_out_of_connections()
        });
        *self.last_error.lock() = Some(error.clone());
        self.failures.fetch_add(1, Ordering::Relaxed);
        if let Some(times) = self.throttle.count(&format!("connecting {}", error.code().unwrap_or_default())) {
            let effect = "calls that need a new connection are refused with UNAVAILABLE until an attempt succeeds";
            tracing::warn!(%error, times, "connecting to Postgres failed; {effect}. {}", sqlstate::advice(error));
        } else {
            tracing::debug!(%error, "connecting to Postgres failed; trying again");
        }
    }

    /// Records that a connection was opened.
    pub(super) fn connected(&self) {
        self.out_of_connections.send_if_modified(std::mem::take);
        self.answered();
    }

    /// Records an answer of Postgres, which closes the circuit breaker.
    pub(super) fn answered(&self) {
        if self.down.borrow().is_none() {
            return;
        }
        let Some(down) = self.down.send_replace(None) else { return };
        let (ms, failures) = (down.since.elapsed().as_millis() as u64, self.failures.swap(0, Ordering::Relaxed));
        if self.throttle.count("answers again").is_some() {
            tracing::info!(ms, failures, "Postgres answers again");
        }
    }

    /// Returns the error for calls while the circuit breaker is open.
    pub(super) fn open_error(&self) -> Option<StoreError> {
        let down = *self.down.borrow();
        down.filter(|down| down.silent && down.since.elapsed() >= GRACE).map(|_| self.error())
    }

    /// Whether the circuit breaker is open, so that calls fail at once.
    pub(crate) fn is_open(&self) -> bool {
        self.open_error().is_some()
    }

    /// Whether a connection attempt has failed since the last answer.
    pub(super) fn is_down(&self) -> bool {
        self.down.borrow().is_some()
    }

    /// Returns the error of the last failed connection attempt, as the answer to calls.
    pub(super) fn error(&self) -> StoreError {
        let since = self.down.borrow().as_ref().map(|down| down.time);
        let cause = match self.last_error.lock().clone() {
            Some(StoreError::NotSent(cause)) => cause,
            Some(error) => Cause::private(error.to_string()),
            None => "all connections were in use".into(),
        };
        StoreError::NotSent(match since {
            Some(since) => cause.since(since),
            None => cause,
        })
    }

    /// Waits until the circuit breaker is open.
    pub(super) async fn until_open(&self) {
        self.until(|down| down.silent).await;
    }

    /// Waits until connection attempts have failed for `GRACE`, for any reason, including refused logins.
    pub(super) async fn until_down(&self) {
        self.until(|_| true).await;
    }

    async fn until(&self, counts: impl Fn(&Down) -> bool) {
        let mut down = self.down.subscribe();
        loop {
            let since = down.borrow_and_update().as_ref().filter(|down| counts(down)).map(|down| down.since);
            let waited = async {
                match since {
                    Some(since) => tokio::time::sleep_until((since + GRACE).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = waited => return,
                // `changed` cannot fail: `self` keeps the sender alive.
                _ = down.changed() => {}
            }
        }
    }

    /// Waits until a connection attempt fails because the role, the database or the server has no connection left.
    pub(super) async fn until_out_of_connections(&self) {
        let _ = self.out_of_connections.subscribe().wait_for(|is_out| *is_out).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> StoreError {
        StoreError::NotSent(Cause::private("connection refused".into()))
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_refused_a_second_after_the_first_failure_until_something_is_answered() {
        let breaker = CircuitBreaker::default();
        assert!(breaker.open_error().is_none());
        let begun = Instant::now();
        breaker.cannot_connect(begun, &refused());
        assert!(breaker.open_error().is_none(), "calls wait for a short restart");
        breaker.until_open().await;
        breaker.until_down().await;
        breaker.answered();
        assert!(breaker.open_error().is_none() && !breaker.is_down());
        if let Some(long_ago) = begun.checked_sub(GRACE) {
            breaker.cannot_connect(long_ago, &refused());
            let text = breaker.open_error().expect("the breaker is open").public_text();
            assert!(text.starts_with("Postgres cannot be reached since 20"), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_login_marks_the_store_as_down_without_refusing_calls() {
        let breaker = CircuitBreaker::default();
        let Some(long_ago) = Instant::now().checked_sub(GRACE) else { return };
        breaker.cannot_connect(long_ago, &StoreError::NotSent(Cause::permanent("password".into())));
        assert!(breaker.open_error().is_none());
        breaker.until_down().await;
    }
}
