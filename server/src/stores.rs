//! The stores of a fleet: each is a database with a schema, brought up to date by itself. Their numbers tell them apart, since
//! the ids of jobs begin with them: so no two stores may have one number, and no database may be two stores
//! (`docs/internals/stores.md`).

mod numbers;
pub mod stream; // one worker's stream, served by several engines

use crate::{
    config::{Config, StoreConfig},
    store::{Actor, MigrationReport, Store, StoreError, StoreFacts},
};
use numbers::Found;

/// Why stores cannot be used together.
#[derive(Debug, thiserror::Error)]
pub enum StoresError {
    /// The configuration and the databases contradict each other.
    #[error("{0}")]
    Config(String),
    /// A database refused or could not be reached.
    #[error("store {name}: {error}")]
    Store {
        /// The store's name.
        name: String,
        /// The cause.
        error: StoreError,
    },
}

/// A store that is up to date.
pub struct ReadyStore {
    /// Its name.
    pub name: String,
    /// The configuration with this store alone.
    pub config: Config,
    /// Its database.
    pub store: Store,
    /// What the migration did, if there was one.
    pub report: Option<MigrationReport>,
    /// What the database says of itself. `None`: it is the only store, and the configuration gives it no number.
    pub facts: Option<StoreFacts>,
}

/// Brings each store up to date, unless the configuration forbids it, and checks that their numbers tell them apart. Stores
/// that have given out no id yet get a number here. `called` is who does that, for the audit.
pub async fn prepare(config: &Config, called: &'static str) -> Result<Vec<ReadyStore>, StoresError> {
    let configured = config.each_store();
    let has_numbers = configured.len() > 1 || configured.iter().any(|store| store.number.is_some());
    let mut ready = Vec::new();
    for one in &configured {
        let of = |error| StoresError::Store { name: one.name.clone(), error };
        let config = config.of_store(one);
        let store = Store::new(&config).map_err(StoresError::Config)?;
        let report = if config.migrate { Some(store.migrate().await.map_err(of)?) } else { None };
        let facts = if has_numbers { Some(store.facts().await.map_err(of)?) } else { None };
        ready.push(ReadyStore { name: one.name.clone(), config, store, report, facts });
    }
    give_numbers(&configured, &mut ready, config.migrate, called).await?;
    Ok(ready)
}

async fn give_numbers(
    configured: &[StoreConfig],
    ready: &mut [ReadyStore],
    may_change: bool,
    called: &'static str,
) -> Result<(), StoresError> {
    let found: Vec<Found<'_>> = configured
        .iter()
        .zip(&*ready)
        .filter_map(|(configured, ready)| Some(Found::new(configured, ready.facts.as_ref()?)))
        .collect();
    for (nth, number) in numbers::decide(&found).map_err(StoresError::Config)? {
        let Some(ReadyStore { name, store, facts, .. }) = ready.get_mut(nth) else { continue };
        if !may_change {
            return Err(StoresError::Config(format!(
                "store {name} must get the number {number} first: howdah migrate --store-number {number}"
            )));
        }
        let of = |error| StoresError::Store { name: name.clone(), error };
        store.set_number(number, &Actor::of_session(called)).await.map_err(of)?;
        *facts = Some(store.facts().await.map_err(of)?);
    }
    Ok(())
}
