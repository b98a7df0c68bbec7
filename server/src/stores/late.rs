//! Stores that could not be reached at the start: they are tried again until they can be.

use std::{sync::Arc, time::Duration};

use super::{ReadyStore, StoresError, fleet::Fleet, fleet::START, give_numbers, update};
use crate::{
    backoff::Backoff,
    config::StoreConfig,
    store::{StoreError, StoreFacts},
};

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Whether this error may go away by itself: the database is away, or busy.
pub(super) fn may_come_later(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::NotSent(_)
            | StoreError::Unknown(_)
            | StoreError::RolledBack(_)
            | StoreError::Conflict(_)
            | StoreError::Locked(_)
    )
}

/// A store without jobs takes any number that is free. Which ones are free is not known while another store cannot say
/// its own.
pub(super) fn check_numbers(
    configured: &[StoreConfig],
    ready: &[ReadyStore],
    away: &[(&StoreConfig, StoreError)],
) -> Result<(), StoresError> {
    let Some((unknown, error)) = away.iter().find(|(one, _)| one.number.is_none()) else { return Ok(()) };
    let is_open = |(one, store): &(&StoreConfig, &ReadyStore)| {
        one.number.is_none() && store.facts.as_ref().is_some_and(|facts| !facts.has_ids)
    };
    match configured.iter().zip(ready).find(is_open) {
        None => Ok(()),
        Some((one, _)) => Err(StoresError::Config(format!(
            "store {} has had no job, so it may have any number, and store {} cannot say which one is its own ({error}): \
             start again when it can be reached, or set number in both",
            one.name, unknown.name
        ))),
    }
}

impl Fleet {
    /// Starts the broker of a store as soon as its database can be reached.
    pub(super) fn start_late(self: &Arc<Self>, name: &str, error: &StoreError) {
        tracing::warn!(store = name, %error, "this store cannot be reached; it is served as soon as it can be");
        let (fleet, name, stopping) = (self.clone(), name.to_owned(), self.stopping.clone());
        tokio::spawn(stopping.run_until_cancelled_owned(async move {
            let mut backoff = Backoff::new(Duration::from_millis(500), LONGEST_PAUSE);
            let mut said = String::new();
            loop {
                backoff.pause().await;
                match fleet.try_late(&name).await {
                    Ok(()) => {
                        tracing::info!(store = name, "this store is served now");
                        return;
                    }
                    Err(error) => {
                        let problem = error.to_string();
                        // Each problem once.
                        if problem == said {
                            tracing::debug!(store = name, %error, "this store cannot be served yet");
                        } else {
                            tracing::warn!(store = name, %error, "this store cannot be served yet");
                            said = problem;
                        }
                    }
                }
            }
        }));
    }

    async fn try_late(&self, name: &str) -> Result<(), StoresError> {
        let Some(member) = self.members.iter().find(|member| member.name() == name) else { return Ok(()) };
        let of = |error| StoresError::Store { name: name.to_owned(), error };
        let ready = update(&member.config, &member.configured, true).await?.map_err(of)?;
        let served: Vec<(StoreConfig, StoreFacts)> = self
            .members
            .iter()
            .filter_map(|member| Some((member.configured.clone(), member.engine.get()?.facts.clone())))
            .collect();
        let mut ready = vec![ready];
        give_numbers(std::slice::from_ref(&member.configured), &mut ready, &served, START).await?;
        for store in ready {
            self.engine_of(store).await?;
        }
        Ok(())
    }
}
