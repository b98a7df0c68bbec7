//! Several stores in one process. A store is a database with a schema. Each store is migrated separately and has its
//! own broker in the process. Job ids begin with the store number, so store numbers must be unique. No database may be
//! configured as two stores (`docs/internals/stores.md`).

mod databases; // stores whose name is a pattern for databases
mod home; // finds the store that a task type belongs to
pub(crate) mod moving; // moves a task type to another store
mod numbers; // assigns and checks store numbers
mod open; // checks a store before its broker starts
pub(crate) mod pull; // pulls jobs without a stream from several stores
mod reconnect; // stores that are unreachable at the start
mod reload; // adds and removes stores while the process runs
mod served; // the brokers of a process, one for each store
pub mod stream; // one worker's stream, served by the brokers of several stores

use std::time::{Duration, Instant};

use futures::future::join_all;
use howdah_core::config::{Config, StoreConfig};
use howdah_engine::store::{Actor, MigrationReport, Store, StoreError, StoreFacts};

use numbers::Found;
pub(crate) use reload::SkippedStore;
pub use reload::{ReadConfig, Reloaded, SharedStores};
pub use served::Stores;
pub(crate) use served::{ConfiguredStore, ServedStore};

/// Name in the audit log for the assignment of store numbers by a broker.
const START: &str = "the start of a broker";
/// Pause between two attempts to reach a store's database while the process starts.
const BEFORE_AGAIN: Duration = Duration::from_millis(200);

/// Reason why the process cannot serve its stores.
#[derive(Debug, thiserror::Error)]
pub enum StoresError {
    /// The configuration and the databases contradict each other.
    #[error("{0}")]
    Config(String),
    /// A database refused a request or is unreachable.
    #[error("store {name}: {error}")]
    Store {
        /// Name of the store.
        name: String,
        /// The cause.
        error: StoreError,
    },
    /// Notifications (LISTEN/NOTIFY) of a store do not arrive.
    #[error(
        "store {0}: LISTEN does not work on this connection (a pooler in transaction mode?): give a direct one with \
         --listen-database-url, or poll with --wake poll"
    )]
    NoNotifications(String),
}

impl StoresError {
    /// Returns what an operator should do about the error, unless its text says so.
    fn advice(&self) -> &'static str {
        match self {
            Self::Store { error, .. } => error.advice(),
            Self::Config(_) | Self::NoNotifications(_) => "",
        }
    }

    /// Returns the error text for callers, with what to do about it.
    fn public_text(&self) -> String {
        match self {
            Self::Store { error, .. } => format!("{}. {}", error.public_text(), error.advice()),
            Self::Config(_) | Self::NoNotifications(_) => self.to_string(),
        }
    }
}

/// A store whose schema has the current version.
pub struct ReadyStore {
    pub name: String,
    /// Configuration of the process, with the database, schema and number of this store.
    pub config: Config,
    pub store: Store,
    /// Report of the migration, if one was requested.
    pub report: Option<MigrationReport>,
    /// Store number and database identity.
    pub facts: StoreFacts,
}

/// Migrates each store, unless the configuration forbids it, and checks that store numbers are unique. Assigns a number to
/// stores that have not issued a job id yet. `called` is the name of the actor in the audit log.
pub async fn prepare(config: &Config, called: &'static str) -> Result<Vec<ReadyStore>, StoresError> {
    let mut config = config.clone();
    let expanded = databases::expand(&mut config).await?;
    if let Some((one, error)) = expanded.unreachable.into_iter().next() {
        return Err(StoresError::Store { name: one.name, error });
    }
    let mut ready = Vec::new();
    for one in &expanded.stores {
        let of = |error| StoresError::Store { name: one.name.clone(), error };
        ready.push(update(&config, one).await?.map_err(of)?);
    }
    assign_numbers(&expanded.stores, &mut ready, &[], called).await?;
    Ok(ready)
}

/// Migrates one store. The outer error is a wrong configuration, which ends the start. The inner error comes from the
/// store's database and may be temporary.
async fn update(config: &Config, one: &StoreConfig) -> Result<Result<ReadyStore, StoreError>, StoresError> {
    let config = config.of_store(one);
    let store = Store::new(&config).map_err(StoresError::Config)?;
    let update = async || {
        let report = if config.migrate { Some(store.migrate().await?) } else { None };
        for changed in store.sync_state_with_rows().await? {
            tracing::warn!(store = %one.name, %changed, "corrected state that logical replication does not copy");
        }
        Ok::<_, StoreError>((report, store.facts().await?))
    };
    // Retry: Postgres may be starting at the same time as the broker.
    let until = Instant::now() + config.database_timeout;
    let updated = loop {
        match update().await {
            Err(error @ StoreError::NotSent(_)) if !reconnect::is_refused(&error) && Instant::now() < until => {}
            updated => break updated,
        }
        tokio::time::sleep(BEFORE_AGAIN).await;
    };
    Ok(updated.map(|(report, facts)| ReadyStore { name: one.name.clone(), config, store, report, facts }))
}

/// Stores after their migration.
struct Updated {
    ready: Vec<ReadyStore>,
    /// Stores whose database cannot be reached now.
    unreachable: Vec<(StoreConfig, StoreError)>,
    /// Databases that match a pattern and cannot be served, until an operator changes them.
    skipped: Vec<(StoreConfig, StoresError)>,
}

impl Updated {
    /// Migrates these stores concurrently, assigns numbers to those that need one, and tests their notifications. `others`
    /// are stores that this process already serves; without them, the first store is the primary store, which must be
    /// reachable. Fails if a store has another problem than an unreachable database. A database that only matches a pattern is
    /// then skipped.
    async fn of(
        config: &Config,
        configured: &[StoreConfig],
        others: &[(StoreConfig, StoreFacts)],
    ) -> Result<Self, StoresError> {
        let updated = join_all(configured.iter().map(|one| update(config, one))).await;
        let (mut ready, mut unreachable, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        for (one, updated) in configured.iter().zip(updated) {
            let of = |error| StoresError::Store { name: one.name.clone(), error };
            match updated? {
                Ok(store) => ready.push((one.clone(), store)),
                Err(error) if one.is_matched && reconnect::is_refused(&error) => skipped.push((one.clone(), of(error))),
                Err(error) if reconnect::is_temporary(&error) && !(others.is_empty() && ready.is_empty()) => {
                    unreachable.push((one.clone(), error));
                }
                Err(error) => return Err(of(error)),
            }
        }
        skip_contradicting(&mut ready, others, &mut skipped);
        let (reached, mut ready): (Vec<StoreConfig>, Vec<ReadyStore>) = ready.into_iter().unzip();
        reconnect::check_numbers(&reached, &ready, &unreachable)?;
        assign_numbers(&reached, &mut ready, others, START).await?;
        let mut opened = Vec::new();
        for (one, store) in reached.into_iter().zip(ready) {
            match open::open(&store).await {
                Ok(()) => opened.push(store),
                Err(error) if one.is_matched => skipped.push((one, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { ready: opened, unreachable, skipped })
    }
}

/// Skips databases that match a pattern and contradict other stores, such as a copy of another database.
fn skip_contradicting(
    ready: &mut Vec<(StoreConfig, ReadyStore)>,
    others: &[(StoreConfig, StoreFacts)],
    skipped: &mut Vec<(StoreConfig, StoresError)>,
) {
    let found: Vec<Found<'_>> = found(ready.iter().map(|(configured, ready)| (configured, &ready.facts)), others);
    for (nth, problem) in numbers::contradicting(&found).into_iter().rev() {
        let (configured, _) = ready.remove(nth);
        skipped.push((configured, StoresError::Config(problem)));
    }
}

/// Returns stores and the `others`, which this process already serves, for a decision about their numbers.
fn found<'a>(
    own: impl Iterator<Item = (&'a StoreConfig, &'a StoreFacts)>,
    others: &'a [(StoreConfig, StoreFacts)],
) -> Vec<Found<'a>> {
    let others = others.iter().map(|(configured, facts)| Found::served(configured, facts));
    own.map(|(configured, facts)| Found::new(configured, facts)).chain(others).collect()
}

/// Assigns numbers to the stores in `ready` that need one. `others` are stores that this process already serves, which
/// keep their numbers.
async fn assign_numbers(
    configured: &[StoreConfig],
    ready: &mut [ReadyStore],
    others: &[(StoreConfig, StoreFacts)],
    called: &'static str,
) -> Result<(), StoresError> {
    let found = found(configured.iter().zip(ready.iter().map(|ready| &ready.facts)), others);
    for (nth, number) in numbers::decide(&found).map_err(StoresError::Config)? {
        let Some(ReadyStore { name, config, store, facts, .. }) = ready.get_mut(nth) else { continue };
        if !config.migrate {
            return Err(StoresError::Config(format!(
                "store {name} must get the number {number} first: howdah migrate --store-number {number}"
            )));
        }
        let of = |error| StoresError::Store { name: name.clone(), error };
        store.set_number(number, &Actor::of_session(called)).await.map_err(of)?;
        *facts = store.facts().await.map_err(of)?;
    }
    Ok(())
}
