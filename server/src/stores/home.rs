//! The home of a task type: the store that has had the type for the longest time. Jobs go to the home of their type
//! unless the caller names a store. The home stays the same if stores are added, or if a caller creates the type in
//! another store by SQL.
//!
//! For a new type, rendezvous hashing (Thaler and Ravishankar, 1998) of its name chooses one of the stores with
//! `new_types`. So all brokers choose the same store without coordination.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime},
};

use futures::future::join_all;
use howdah_core::{error::Error, job::TaskTypeName};
use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};

use super::served::{ConfiguredStore, ServedStore, Stores};

/// Time for which a cached home of a task type is valid while no settings change. A move of the type changes the
/// settings. Without a move, the home changes only if the type is deleted as unused and created again.
const HOME_TTL: Duration = Duration::from_mins(1);
/// Maximum number of task types whose homes are cached.
const MOST: usize = 100_000;
/// Timeout of asking a store whether it has a task type. It exceeds delays of some seconds, during which the circuit
/// breaker of a slow store stays closed. Stores with an open circuit breaker are not asked.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of asking a store whether it has a task type, if a cached home has only expired by time. It is short: the
/// cached home is probably still right, and enqueues must not wait for a slow store.
const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

/// Cache of the homes of task types, as positions in the list of stores.
#[derive(Debug, Default)]
pub(super) struct Homes(RwLock<HashMap<TaskTypeName, Home>>);

#[derive(Debug)]
struct Home {
    nth: usize,
    since: Instant,
    /// Sum of all stores' settings versions when the home was looked up. A move of a task type changes the sum.
    settings: i64,
}

/// Whether a cached home of a task type can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    Fresh,
    /// The cached home has expired by time.
    Old,
    /// Settings have changed since the lookup, so the task type may have moved.
    Changed,
}

impl Homes {
    fn get(&self, name: &TaskTypeName, settings: i64) -> Option<(usize, Freshness)> {
        let homes = self.0.read();
        let home = homes.get(name)?;
        let freshness = match home.settings == settings {
            true if home.since.elapsed() < HOME_TTL => Freshness::Fresh,
            true => Freshness::Old,
            false => Freshness::Changed,
        };
        Some((home.nth, freshness))
    }

    fn set(&self, name: &TaskTypeName, nth: usize, settings: i64) {
        let mut homes = self.0.write();
        if homes.len() >= MOST {
            homes.clear();
        }
        homes.insert(name.clone(), Home { nth, since: Instant::now(), settings });
    }
}

/// Answer of a store to the question whether it has a task type.
enum Known {
    /// The store has had the task type since this time.
    Since(SystemTime),
    Missing,
    /// The store has not answered, so it may have the task type.
    Unreachable,
}

impl Stores {
    /// Returns the home of a task type, or the store in which a new type will be created.
    pub(crate) async fn home(&self, name: &TaskTypeName) -> Result<&ServedStore, Error> {
        let nth = self.home_at(name).await?;
        self.all()
            .get(nth)
            .ok_or_else(|| Error::Internal("bug: the home of a task type is not in the list of stores".into()))?
            .reachable()
    }

    async fn home_at(&self, name: &TaskTypeName) -> Result<usize, Error> {
        let settings = self.settings_of_all();
        let cached = self.homes.get(name, settings);
        if let Some((home, Freshness::Fresh)) = cached {
            return Ok(home);
        }
        let timeout = if let Some((_, Freshness::Old)) = cached { SHORT_TIMEOUT } else { TIMEOUT };
        let known = join_all(self.all().iter().map(|store| known(store, name, timeout))).await;
        let oldest = known.iter().enumerate().filter_map(|(nth, known)| match known {
            Known::Since(created) => Some((*created, nth)),
            Known::Missing | Known::Unreachable => None,
        });
        let oldest = oldest.min().map(|(_, nth)| nth);
        let is_unreachable = |nth: &usize| matches!(known.get(*nth), Some(Known::Unreachable));
        let home = match (oldest, cached) {
            // An unreachable cached home may still have had the type for the longest time, so it stays the home.
            (_, Some((home, _))) if is_unreachable(&home) => home,
            (Some(home), _) => home,
            (None, _) => {
                if let Some(unknown) = (0..known.len()).find(is_unreachable).and_then(|nth| self.all().get(nth)) {
                    return Err(Error::Unavailable(format!(
                        "task type {name} may belong to store {}, whose database cannot be reached now; retry later, or \
                         select the store to enqueue in",
                        unknown.name()
                    )));
                }
                self.chosen(name)
            }
        };
        self.homes.set(name, home, settings);
        Ok(home)
    }

    /// Returns the sum of the settings versions of all stores that this process serves. Each change of settings changes
    /// it.
    fn settings_of_all(&self) -> i64 {
        self.served().fold(0, |sum, served| sum.wrapping_add(served.broker.settings_version()))
    }

    /// Returns the stores that have a task type, and the names of unreachable stores.
    pub(crate) async fn having(&self, name: &TaskTypeName) -> (Vec<&ServedStore>, Vec<&str>) {
        let known = join_all(self.all().iter().map(|store| known(store, name, TIMEOUT))).await;
        let (mut having, mut unreachable) = (Vec::new(), Vec::new());
        for (store, known) in self.all().iter().zip(known) {
            match (known, store.served()) {
                (Known::Since(_), Ok(served)) => having.push(served),
                (Known::Unreachable, _) => unreachable.push(store.name()),
                _ => {}
            }
        }
        (having, unreachable)
    }

    /// Returns the position of the store that becomes the home of a new task type. Only stores with `new_types` count.
    /// Stores that are open to new jobs come before closed ones.
    pub(crate) fn chosen(&self, name: &TaskTypeName) -> usize {
        let weight = |store: &ConfiguredStore| {
            let number = store.served().map_or(0, |served| served.number.get());
            Sha256::new().chain_update(number.to_be_bytes()).chain_update(name.as_str()).finalize()
        };
        let is_open = |store: &ConfiguredStore| store.served().is_ok_and(|served| !served.broker.is_closed());
        let takes_it = self.all().iter().enumerate().filter(|(_, store)| store.configured.new_types);
        takes_it.max_by_key(|(_, store)| (is_open(store), weight(store))).map_or(0, |(nth, _)| nth)
    }
}

async fn known(store: &ConfiguredStore, name: &TaskTypeName, timeout: Duration) -> Known {
    let Ok(served) = store.reachable() else { return Known::Unreachable };
    let created = served.broker.type_created(name);
    match tokio::time::timeout(timeout, created).await {
        Ok(Ok(Some(created))) => Known::Since(created),
        Ok(Ok(None)) => Known::Missing,
        Ok(Err(_)) | Err(_) => Known::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_home_is_old_after_its_time_and_changed_after_a_change_of_settings() {
        let (homes, name) = (Homes::default(), TaskTypeName::parse("t").unwrap());
        assert_eq!(homes.get(&name, 1), None);
        homes.set(&name, 1, 1);
        assert_eq!(homes.get(&name, 1), Some((1, Freshness::Fresh)));
        assert_eq!(homes.get(&name, 2), Some((1, Freshness::Changed)));
        homes.0.write().get_mut(&name).unwrap().since -= HOME_TTL;
        assert_eq!(homes.get(&name, 1), Some((1, Freshness::Old)));
        assert_eq!(homes.get(&name, 2), Some((1, Freshness::Changed)));
    }
}
