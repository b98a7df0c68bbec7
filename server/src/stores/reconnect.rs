//! Starts the brokers of stores that were unreachable when the process started, once their databases are reachable.

use std::{sync::Arc, time::Duration};

use howdah_core::config::StoreConfig;
use howdah_engine::{backoff::Backoff, store::StoreError};

use super::{ConfiguredStore, ReadyStore, SharedStores, StoresError, Updated};

/// Maximum pause between two attempts to start the broker of an unreachable store.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Whether the error may be temporary: the database is unreachable or busy.
pub(super) fn is_temporary(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::NotSent(_)
            | StoreError::Unknown(_)
            | StoreError::RolledBack(_)
            | StoreError::Conflict(_)
            | StoreError::Locked(_)
    )
}

/// Whether the database cannot be served until an operator changes it, because it has other tables or the broker lacks
/// rights. False for errors of the whole server, of locks and of timeouts, which may be temporary.
pub(super) fn is_refused(error: &StoreError) -> bool {
    const TEMPORARY: [&str; 7] = ["08", "25", "40", "53", "55", "57", "58"];
    let is_lasting = |code: &str| !TEMPORARY.iter().any(|class| code.starts_with(class));
    matches!(error, StoreError::Refused(_) | StoreError::Taken(_))
        || error.is_permanent()
        || error.code().is_some_and(is_lasting)
}

/// Fails if a store must get a new number while an unreachable store's number is unknown, because the two numbers could
/// be the same.
pub(super) fn check_numbers(
    configured: &[StoreConfig],
    ready: &[ReadyStore],
    unreachable: &[(StoreConfig, StoreError)],
) -> Result<(), StoresError> {
    let Some((unknown, error)) = unreachable.iter().find(|(one, _)| one.number.is_none()) else { return Ok(()) };
    let is_open = |(one, store): &(&StoreConfig, &ReadyStore)| one.number.is_none() && !store.facts.has_ids;
    match configured.iter().zip(ready).find(is_open) {
        None => Ok(()),
        Some((one, _)) => Err(StoresError::Config(format!(
            "store {} has had no job, so its number is not fixed, and the number of store {} is unknown ({error}): \
             start the broker when both are reachable, or set number in both",
            one.name, unknown.name
        ))),
    }
}

impl SharedStores {
    /// Starts the broker of a store once its database is reachable.
    pub(super) fn retry_start(&self, store: &Arc<ConfiguredStore>, error: &StoreError) {
        let name = store.name().to_owned();
        tracing::warn!(store = name, %error, "the store is unreachable; the broker retries until it is reachable");
        let (stores, store, removed) = (self.clone(), store.clone(), store.removed.clone());
        tokio::spawn(removed.run_until_cancelled_owned(async move {
            let mut backoff = Backoff::new(Duration::from_millis(500), LONGEST_PAUSE);
            let mut logged = String::new();
            loop {
                backoff.pause().await;
                match stores.try_start(&store).await {
                    Ok(()) => {
                        tracing::info!(store = name, "the store is reachable; the broker serves it now");
                        return;
                    }
                    Err(error) => {
                        let problem = error.to_string();
                        // Only a problem that differs from the last one is logged as a warning.
                        if problem == logged {
                            tracing::debug!(store = name, %error, "the broker cannot serve this store yet; trying again");
                        } else {
                            tracing::warn!(store = name, %error, "the broker cannot serve this store yet; trying again");
                            logged = problem;
                        }
                    }
                }
            }
        }));
    }

    async fn try_start(&self, store: &ConfiguredStore) -> Result<(), StoresError> {
        let now = self.now();
        let mut updated = Updated::of(&store.config, std::slice::from_ref(&store.configured), &now.facts()).await?;
        if let Some((one, error)) = updated.unreachable.pop() {
            return Err(StoresError::Store { name: one.name, error });
        }
        if let Some((_, error)) = updated.skipped.pop() {
            return Err(error);
        }
        for one in updated.ready {
            now.start_broker(one).await?;
        }
        Ok(())
    }
}
