//! Where a task type lives. Its home is the store that has had it for longest, so it stays where it is, whatever other stores
//! are added and whoever enqueues jobs of it elsewhere by SQL. A new type gets its home by its name: rendezvous hashing (Thaler
//! and Ravishankar, 1998) among the stores that take new types, so all brokers choose the same store without asking each other.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime},
};

use futures::future::join_all;
use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};

use super::fleet::{Engine, Fleet, Member};
use crate::{error::Error, job::TaskTypeName};

/// How long a home is remembered, if no settings change. A type that is moved changes them; otherwise it moves only when it was
/// deleted as unused.
const REMEMBERED: Duration = Duration::from_mins(1);
/// The most homes that are remembered: as many as there may be types in a few stores.
const MOST: usize = 100_000;
/// How long a store may take to say whether it has a type. A store that is known to be away is not asked; one that is held up
/// for some seconds is not away.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same if the home is remembered, and no settings have changed since: then only the time is over, and enqueues do not wait
/// for a store that does not answer.
const BRIEFLY: Duration = Duration::from_millis(100);

/// The homes that were looked up lately: positions in the list of stores.
#[derive(Debug, Default)]
pub(super) struct Homes(RwLock<HashMap<TaskTypeName, Home>>);

#[derive(Debug)]
struct Home {
    nth: usize,
    since: Instant,
    /// The settings of all stores then: a type that moves to another store changes them.
    settings: i64,
}

/// What a home that is remembered is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    /// It needs no other look.
    Fresh,
    /// It is remembered for too long.
    Old,
    /// Settings have changed since: the type may have moved.
    Changed,
}

impl Homes {
    fn get(&self, name: &TaskTypeName, settings: i64) -> Option<(usize, Worth)> {
        let homes = self.0.read();
        let home = homes.get(name)?;
        let worth = match home.settings == settings {
            true if home.since.elapsed() < REMEMBERED => Worth::Fresh,
            true => Worth::Old,
            false => Worth::Changed,
        };
        Some((home.nth, worth))
    }

    fn set(&self, name: &TaskTypeName, nth: usize, settings: i64) {
        let mut homes = self.0.write();
        if homes.len() >= MOST {
            homes.clear();
        }
        homes.insert(name.clone(), Home { nth, since: Instant::now(), settings });
    }
}

/// What a store knows of a type.
enum Known {
    Since(SystemTime),
    Missing,
    /// It cannot be asked.
    Away,
}

impl Fleet {
    /// The store in which a type lives, or would live.
    pub(crate) async fn home(&self, name: &TaskTypeName) -> Result<&Engine, Error> {
        let nth = self.home_at(name).await?;
        self.members().get(nth).ok_or_else(|| Error::Internal("a home is no store".into()))?.reachable()
    }

    async fn home_at(&self, name: &TaskTypeName) -> Result<usize, Error> {
        let settings = self.settings_of_all();
        let remembered = self.homes.get(name, settings);
        if let Some((home, Worth::Fresh)) = remembered {
            return Ok(home);
        }
        let patience = if let Some((_, Worth::Old)) = remembered { BRIEFLY } else { PATIENCE };
        let known = join_all(self.members().iter().map(|member| known(member, name, patience))).await;
        let oldest = known.iter().enumerate().filter_map(|(nth, known)| match known {
            Known::Since(created) => Some((*created, nth)),
            Known::Missing | Known::Away => None,
        });
        let oldest = oldest.min().map(|(_, nth)| nth);
        let is_away = |nth: &usize| matches!(known.get(*nth), Some(Known::Away));
        let home = match (oldest, remembered) {
            // It may be older in the store that is away, where it was at home a minute ago.
            (_, Some((home, _))) if is_away(&home) => home,
            (Some(home), _) => home,
            (None, _) => {
                if let Some(unknown) = (0..known.len()).find(is_away).and_then(|nth| self.members().get(nth)) {
                    return Err(Error::Unavailable(format!(
                        "task type {name} may be at home in store {}, whose database cannot be reached now; \
                         name another store to enqueue it there",
                        unknown.name()
                    )));
                }
                self.chosen(name)
            }
        };
        self.homes.set(name, home, settings);
        Ok(home)
    }

    /// A number that changes with the settings of each store, as this process knows them.
    fn settings_of_all(&self) -> i64 {
        self.engines().fold(0, |sum, engine| sum.wrapping_add(engine.broker.settings_version()))
    }

    /// The stores that have a type, by their places in the list; those that cannot be asked are named.
    pub(crate) async fn having(&self, name: &TaskTypeName) -> (Vec<&Engine>, Vec<&str>) {
        let known = join_all(self.members().iter().map(|member| known(member, name, PATIENCE))).await;
        let (mut having, mut away) = (Vec::new(), Vec::new());
        for (member, known) in self.members().iter().zip(known) {
            match (known, member.engine()) {
                (Known::Since(_), Ok(engine)) => having.push(engine),
                (Known::Away, _) => away.push(member.name()),
                _ => {}
            }
        }
        (having, away)
    }

    /// The home of a new type: a store that takes new jobs, if there is one.
    pub(crate) fn chosen(&self, name: &TaskTypeName) -> usize {
        let weight = |member: &Member| {
            let number = member.engine().map_or(0, |engine| engine.number.get());
            Sha256::new().chain_update(number.to_be_bytes()).chain_update(name.as_str()).finalize()
        };
        let is_open = |member: &Member| member.engine().is_ok_and(|engine| !engine.broker.is_closed());
        let takes_it = self.members().iter().enumerate().filter(|(_, member)| member.configured.new_types);
        takes_it.max_by_key(|(_, member)| (is_open(member), weight(member))).map_or(0, |(nth, _)| nth)
    }
}

async fn known(member: &Member, name: &TaskTypeName, patience: Duration) -> Known {
    let Ok(engine) = member.reachable() else { return Known::Away };
    let created = engine.broker.type_created(name);
    match tokio::time::timeout(patience, created).await {
        Ok(Ok(Some(created))) => Known::Since(created),
        Ok(Ok(None)) => Known::Missing,
        Ok(Err(_)) | Err(_) => Known::Away,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_asked_for_briefly_when_only_the_time_is_over() {
        let (homes, name) = (Homes::default(), TaskTypeName::parse("t").unwrap());
        assert_eq!(homes.get(&name, 1), None);
        homes.set(&name, 1, 1);
        assert_eq!(homes.get(&name, 1), Some((1, Worth::Fresh)));
        assert_eq!(homes.get(&name, 2), Some((1, Worth::Changed)));
        homes.0.write().get_mut(&name).unwrap().since -= REMEMBERED;
        assert_eq!(homes.get(&name, 1), Some((1, Worth::Old)));
        assert_eq!(homes.get(&name, 2), Some((1, Worth::Changed)));
    }
}
