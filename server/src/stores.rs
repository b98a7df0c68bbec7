//! Several stores in one process. A store is a database with a schema. Each store is migrated separately and has its
//! own broker in the process. Job ids begin with the store number, so store numbers must be unique. No database may be
//! configured as two stores (`docs/internals/stores.md`).

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use futures::future::join_all;
use howdah_core::config::{Config, MOST_STORES, StoreConfig, WakeMode};
use howdah_engine::store::{Actor, MigrationReport, Store, StoreError, StoreFacts, retry_while_locked};
use numbers::Found;

mod home; // finds the store that a task type belongs to
pub(crate) mod moving; // moves a task type to another store
mod numbers; // assigns and checks store numbers
pub(crate) mod pull; // pulls jobs without a stream from several stores
mod reconnect; // stores that are unreachable at the start
mod reload; // adds and removes stores while the process runs
mod served; // the brokers of a process, one for each store
pub mod stream; // one worker's stream, served by the brokers of several stores

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
    /// Returns what an operator should do about the error. Empty if the error text says it.
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

impl ReadyStore {
    /// Returns the store with which a broker serves, and closes the connections of the preparation.
    fn served(&mut self) -> Result<Store, StoresError> {
        self.store = Store::new(&self.config).map_err(StoresError::Config)?;
        Ok(self.store.clone())
    }
}

/// Migrates each store, unless the configuration forbids it, and checks that store numbers are unique. Assigns a number to
/// stores that have not issued a job id yet. `called` is the name of the actor in the audit log.
pub async fn prepare(config: &Config, called: &'static str) -> Result<Vec<ReadyStore>, StoresError> {
    let mut config = config.clone();
    let expanded = expand(&mut config).await?;
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
    let store = Store::for_command(&config).map_err(StoresError::Config)?;
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
    /// reachable. Any problem other than an unreachable database is an error, except that a database that only matches
    /// a pattern is skipped.
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
            match open(&store).await {
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

/// Returns the facts from which store numbers are decided: of `own`, and of `others`, which this process already
/// serves.
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

/// The stores of a configuration, with each pattern replaced by the databases that match it.
pub(super) struct Expanded {
    pub(super) stores: Vec<StoreConfig>,
    /// Patterns whose server could not be asked for its databases, each with the error.
    pub(super) unreachable: Vec<(StoreConfig, StoreError)>,
}

/// Replaces each pattern by the databases that match it. A database that is configured by its name keeps its own settings. Adds
/// the files of the connection strings to the configuration.
pub(super) async fn expand(config: &mut Config) -> Result<Expanded, StoresError> {
    let configured = config.each_store();
    let mut names: HashSet<String> = configured.iter().map(|store| store.name.clone()).collect();
    let mut expanded = Expanded { stores: Vec::new(), unreachable: Vec::new() };
    for one in configured {
        if one.pattern().is_none() {
            expanded.stores.push(one);
            continue;
        }
        let store = Store::for_command(&config.of_store(&one)).map_err(StoresError::Config)?;
        let databases = match store.databases().await {
            Ok(databases) => databases,
            Err(error) => {
                expanded.unreachable.push((one, error));
                continue;
            }
        };
        for found in databases.iter().filter_map(|database| one.of_database(database)) {
            if names.insert(found.name.clone()) {
                config.add_url_files(&one, &found.name);
                expanded.stores.push(found);
            }
        }
    }
    match expanded.stores.len() {
        count if count > MOST_STORES => {
            let problem = format!("the patterns match {count} stores in all; a broker serves at most {MOST_STORES}");
            Err(StoresError::Config(problem))
        }
        _ => Ok(expanded),
    }
}

/// Maximum time that the LISTEN test waits for its notification.
const LISTEN_PROBE: Duration = Duration::from_secs(15);

/// Logs what the migration changed. Unless `wake` is `poll`, tests whether notifications arrive.
pub(super) async fn open(ready: &ReadyStore) -> Result<(), StoresError> {
    let (name, store) = (&ready.name, &ready.store);
    if let Some(report) = &ready.report {
        if report.created {
            tracing::info!(schema = store.schema(), "created the schema");
        }
        for name in &report.applied {
            tracing::info!(migration = %name, "applied a migration of the tables");
        }
        for part in &report.replaced {
            tracing::info!(part = %part, "replaced a part of the schema");
        }
        if report.rights_set > 0 {
            tracing::warn!(objects = report.rights_set, "corrected rights and owners of database objects");
        }
        for left in &report.rights_left {
            tracing::warn!(rights = %left, "unintended rights remain; howdah doctor shows how to revoke them");
        }
        if let Some(release) = &report.newer {
            tracing::info!(%release, "functions or view of the schema are of a newer release; leaving them unchanged");
        }
    }
    let of = |error| StoresError::Store { name: name.clone(), error };
    if ready.config.wake == WakeMode::Poll {
        return Ok(());
    }
    match test_listen(store).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(StoresError::NoNotifications(name.clone())),
        // A permanent error means that the connection string for LISTEN is wrong. Falling back to polling would hide
        // the mistake.
        Err(error) if error.is_permanent() => Err(of(error)),
        Err(error) => {
            tracing::warn!(
                store = %name, %error,
                "LISTEN or NOTIFY failed; polling every {:?} until it works. With wake = \"poll\" no LISTEN is needed",
                ready.config.poll_interval
            );
            Ok(())
        }
    }
}

/// Tests LISTEN: sends a notification and waits for it. Behind a transaction pooler, LISTEN succeeds and yet no
/// notification arrives, so only a received notification proves that LISTEN works.
async fn test_listen(store: &Store) -> Result<bool, StoreError> {
    let channel = format!("{}_probe", store.schema());
    let payload = hex::encode(rand::random::<[u8; 8]>());
    let mut listener = store.listen(&channel, None).await?;
    retry_while_locked("a notification", || store.notify(&channel, &payload)).await?;
    let heard = async {
        while let Some(heard) = listener.next().await {
            if heard == payload {
                return true;
            }
        }
        false
    };
    Ok(tokio::time::timeout(LISTEN_PROBE, heard).await.unwrap_or(false))
}
