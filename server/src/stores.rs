//! The stores of a fleet: each is a database with a schema, brought up to date by itself, and served by a broker of its own in
//! the same process. Their numbers tell them apart, since the ids of jobs begin with them: so no two stores may have one number,
//! and no database may be two stores (`docs/internals/stores.md`).

mod fleet; // the brokers of a process, one for each store
mod home; // where a task type lives
mod late; // stores that were away at the start
pub(crate) mod moving; // a task type goes to another store
mod numbers;
mod open; // what a broker needs of its database before it starts
pub(crate) mod pull; // jobs without a stream, from several stores
pub mod stream; // one worker's stream, served by the brokers of several stores

use crate::{
    config::{Config, StoreConfig},
    store::{Actor, MigrationReport, Store, StoreError, StoreFacts},
};
pub(crate) use fleet::{Engine, Member};
pub use fleet::{Fleet, SharedFleet};
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
    /// Notifications of a store do not come through.
    #[error(
        "store {0}: LISTEN does not work on this connection (a pooler in transaction mode?): give a direct one with \
         --listen-database-url, or poll with --wake poll"
    )]
    NoNotifications(String),
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
    let has_numbers = has_numbers(&configured);
    let mut ready = Vec::new();
    for one in &configured {
        let of = |error| StoresError::Store { name: one.name.clone(), error };
        ready.push(update(config, one, has_numbers).await?.map_err(of)?);
    }
    give_numbers(&configured, &mut ready, &[], called).await?;
    Ok(ready)
}

/// Whether the numbers of these stores matter: one store without a number is as it was before there were several.
fn has_numbers(configured: &[StoreConfig]) -> bool {
    configured.len() > 1 || configured.iter().any(|store| store.number.is_some())
}

/// Brings one store up to date. The inner error is that of its database.
async fn update(
    config: &Config,
    one: &StoreConfig,
    has_number: bool,
) -> Result<Result<ReadyStore, StoreError>, StoresError> {
    let config = config.of_store(one);
    let store = Store::new(&config).map_err(StoresError::Config)?;
    let updated = async {
        let report = if config.migrate { Some(store.migrate().await?) } else { None };
        let facts = if has_number { Some(store.facts().await?) } else { None };
        Ok((report, facts))
    };
    let updated = updated.await;
    Ok(updated.map(|(report, facts)| ReadyStore { name: one.name.clone(), config, store, report, facts }))
}

/// Gives numbers to those stores that need one; `others` keep theirs.
async fn give_numbers(
    configured: &[StoreConfig],
    ready: &mut [ReadyStore],
    others: &[(StoreConfig, StoreFacts)],
    called: &'static str,
) -> Result<(), StoresError> {
    let others = others.iter().map(|(configured, facts)| Found::served(configured, facts));
    let own = configured
        .iter()
        .zip(&*ready)
        .filter_map(|(configured, ready)| Some(Found::new(configured, ready.facts.as_ref()?)));
    let found: Vec<Found<'_>> = own.chain(others).collect();
    for (nth, number) in numbers::decide(&found).map_err(StoresError::Config)? {
        let Some(ReadyStore { name, config, store, facts, .. }) = ready.get_mut(nth) else { continue };
        if !config.migrate {
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
