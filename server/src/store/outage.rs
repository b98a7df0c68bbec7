//! What is logged while Postgres is away: that it is, once; that it still is, now and then; and that it is back. Every task
//! fails then, again and again.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::StoreError;

/// How often the log says that Postgres is still away.
const REMINDER: Duration = Duration::from_secs(60);

/// From then on, calls for one of several stores are refused at once. A restart of Postgres is shorter.
const LONG: Duration = Duration::from_secs(3);

/// Since when Postgres has been away, as far as tasks have noticed.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    away: Mutex<Option<Away>>,
    /// Why the last connection failed, for whoever waits for one.
    pub(super) last_error: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Away {
    since: Instant,
    told: Instant,
    failures: u64,
}

impl Outage {
    /// A task has failed, and tries again.
    pub(crate) fn failed(&self, what: &str, error: &StoreError) {
        if !matches!(error, StoreError::NotSent(_) | StoreError::Unknown(_) | StoreError::RolledBack(_)) {
            tracing::warn!(%error, "{what} failed; trying again");
            return;
        }
        let now = Instant::now();
        let mut away = self.away.lock();
        let Some(away) = &mut *away else {
            *away = Some(Away { since: now, told: now, failures: 1 });
            tracing::warn!(%error, "{what} failed; trying again. Other failures are logged at level debug until Postgres answers");
            return;
        };
        away.failures += 1;
        if now - away.told >= REMINDER {
            away.told = now;
            let (seconds, failures) = (away.since.elapsed().as_secs(), away.failures);
            tracing::warn!(%error, seconds, failures, "Postgres is still away; trying again");
        } else {
            tracing::debug!(%error, "{what} failed; trying again");
        }
    }

    /// Whether it has lasted for so long that nobody should wait for its end.
    pub(crate) fn is_long(&self) -> bool {
        self.away.lock().as_ref().is_some_and(|away| away.since.elapsed() >= LONG)
    }

    /// A task that runs all the time has succeeded: Postgres answers.
    pub(crate) fn over(&self) {
        if let Some(away) = self.away.lock().take() {
            let (ms, failures) = (away.since.elapsed().as_millis() as u64, away.failures);
            tracing::info!(ms, failures, "Postgres answers again");
        }
    }
}
