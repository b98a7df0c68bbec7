//! The stores of a process, which a reload of the configuration changes: stores are added and removed while the process runs.
//!
//! A call works with the list of stores at its start. A change of the list ends the streams of workers, which resume their
//! sessions with the new list.

use std::{sync::Arc, time::Duration};

use howdah_core::{
    config::{Config, StoreConfig},
    job::schedule::CheckTemplate,
};
use howdah_engine::{broker::SharedBroker, store::StoreError};
use tokio::sync::{Mutex, watch};

use super::{ConfiguredStore, Expanded, Stores, StoresError, Updated, expand, reconnect};
use crate::credentials::Authenticator;

/// Interval at which patterns are compared with the databases of their servers.
const LOOK: Duration = Duration::from_mins(1);

/// Function that reads the configuration of the process again.
pub type ReadConfig = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// The stores of a process, shared by its gRPC and HTTP ports. Cheap to clone.
#[derive(Clone)]
pub struct SharedStores(Arc<Inner>);

struct Inner {
    now: watch::Sender<Arc<Stores>>,
    read_config: ReadConfig,
    /// Databases that match a pattern and cannot be served, as of the last reload.
    skipped: parking_lot::Mutex<Vec<SkippedStore>>,
    /// Held during a reload, so that one runs at a time.
    reloading: Mutex<()>,
    main: SharedBroker,
    authenticator: Arc<Authenticator>,
}

/// Result of a reload, as names of stores.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    /// Stores whose settings in the configuration have changed. The new settings take effect when the broker is restarted.
    pub changed: Vec<String>,
    /// Databases that match a pattern and that the broker cannot serve.
    pub skipped: Vec<String>,
}

/// A database that matches a pattern and cannot be served. The broker tries again at each reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SkippedStore {
    pub(crate) name: String,
    /// Reason, for callers.
    pub(crate) problem: String,
}

impl SharedStores {
    /// Migrates the stores and starts a broker for each. The primary store must be reachable. The brokers of unreachable stores
    /// start later, once their databases are reachable.
    pub async fn start(
        config: &Config,
        check_template: CheckTemplate,
        read_config: ReadConfig,
    ) -> Result<Self, StoresError> {
        let mut config = config.clone();
        let expanded = expand(&mut config).await?;
        let (stores, updated) = Stores::open(&config, &expanded.stores, check_template).await?;
        let (main, authenticator) = (stores.main().clone(), stores.authenticator.clone());
        let now = watch::Sender::new(Arc::new(stores));
        let (skipped, reloading) = (parking_lot::Mutex::default(), Mutex::default());
        let stores = Self(Arc::new(Inner { now, read_config, skipped, reloading, main, authenticator }));
        warn_unreachable(&expanded.unreachable);
        stores.skip(&updated.skipped);
        stores.start_each(updated, true).await?;
        stores.look_for_databases();
        Ok(stores)
    }

    /// Returns the stores at this time.
    pub fn now(&self) -> Arc<Stores> {
        self.0.now.borrow().clone()
    }

    /// Returns the broker of the primary store, which keeps tokens and other global data. It never changes.
    pub fn main(&self) -> &SharedBroker {
        &self.0.main
    }

    /// Authenticates callers, by the tokens of the primary store.
    pub(crate) fn authenticator(&self) -> &Arc<Authenticator> {
        &self.0.authenticator
    }

    /// Returns the databases that match a pattern and cannot be served.
    pub(crate) fn skipped(&self) -> Vec<SkippedStore> {
        self.0.skipped.lock().clone()
    }

    /// Replaces the list of skipped databases. Logs each problem once.
    fn skip(&self, skipped: &[(StoreConfig, StoresError)]) {
        let of = |(one, error): &(StoreConfig, StoresError)| SkippedStore {
            name: one.name.clone(),
            problem: error.public_text(),
        };
        let now: Vec<SkippedStore> = skipped.iter().map(of).collect();
        let before = std::mem::replace(&mut *self.0.skipped.lock(), now.clone());
        for (_, (one, error)) in now.iter().zip(skipped).filter(|(skipped, _)| !before.contains(skipped)) {
            let advice = error.advice();
            tracing::warn!(
                store = %one.name, %error,
                "this database matches a pattern of stores and cannot be served; skipping it until a reload succeeds. {advice}"
            );
        }
    }

    /// Completes when the list of stores is no longer this one.
    pub(crate) fn changed(&self, from: &Arc<Stores>) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.0.now.subscribe();
        let has_changed = !Arc::ptr_eq(&changes.borrow_and_update(), from);
        async move {
            if has_changed {
                return;
            }
            // An error means that the process stops, which ends the stream in another way.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reads the configuration again, and adds and removes stores accordingly. If the reload fails, nothing has changed.
    pub async fn reload(&self) -> Result<Reloaded, StoresError> {
        let _one_at_a_time = self.0.reloading.lock().await;
        let mut config = (self.0.read_config)().map_err(StoresError::Config)?;
        let expanded = expand(&mut config).await?;
        warn_unreachable(&expanded.unreachable);
        let now = self.now();
        let mut plan = Plan::new(&now.all, expanded)?;
        for store in &plan.removed {
            check_removed(store)?;
        }
        plan.check_numbers()?;
        let updated = Updated::of(&config, &plan.added, &now.facts()).await?;
        self.skip(&updated.skipped);
        let is_skipped = |one: &StoreConfig| updated.skipped.iter().any(|(skipped, _)| skipped.name == one.name);
        plan.added.retain(|one| !is_skipped(one));
        let names = |stores: &[Arc<ConfiguredStore>]| stores.iter().map(|store| store.name().to_owned()).collect();
        let reloaded = Reloaded {
            added: plan.added.iter().map(|store| store.name.clone()).collect(),
            removed: names(&plan.removed),
            changed: plan.changed,
            skipped: updated.skipped.iter().map(|(one, _)| one.name.clone()).collect(),
        };
        for name in &reloaded.changed {
            tracing::warn!(store = %name, "the settings of this store have changed; restart the broker to apply them");
        }
        if reloaded.added.is_empty() && reloaded.removed.is_empty() {
            return Ok(reloaded);
        }
        let of = |one| Arc::new(ConfiguredStore::new(&config, one, &now.stopping));
        let all = plan.kept.iter().cloned().chain(plan.added.iter().map(of)).collect();
        self.0.now.send_replace(Arc::new(now.with(all)));
        tracing::info!(added = ?reloaded.added, removed = ?reloaded.removed, "the stores of the broker have changed");
        for store in plan.removed {
            tokio::spawn(stop(store));
        }
        self.start_each(updated, false).await?;
        Ok(reloaded)
    }

    /// Starts the brokers of these stores, or retries in the background while a database is unreachable. At the start of the
    /// process, another error of a database that is configured by its name ends the start.
    async fn start_each(&self, updated: Updated, at_start: bool) -> Result<(), StoresError> {
        let mut unreachable: Vec<(String, StoreError)> =
            updated.unreachable.into_iter().map(|(one, error)| (one.name, error)).collect();
        let now = self.now();
        let is_matched = |name: &str| now.all.iter().any(|store| store.name() == name && store.configured.is_matched);
        for one in updated.ready {
            match now.start_broker(one).await {
                Err(StoresError::Store { name, error })
                    if !at_start || is_matched(&name) || reconnect::is_temporary(&error) =>
                {
                    unreachable.push((name, error));
                }
                started => started?,
            }
        }
        for (name, error) in unreachable {
            if let Some(store) = now.all.iter().find(|store| store.name() == name) {
                self.retry_start(store, &error);
            }
        }
        Ok(())
    }

    /// Reloads the configuration regularly if it contains patterns, because databases appear without a notification.
    fn look_for_databases(&self) {
        let (stores, stopping) = (self.clone(), self.now().stopping.clone());
        tokio::spawn(stopping.run_until_cancelled_owned(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let has_patterns =
                    (stores.0.read_config)().is_ok_and(|config| config.stores.iter().any(|store| store.pattern().is_some()));
                if has_patterns && let Err(error) = stores.reload().await {
                    tracing::warn!(%error, "cannot compare the patterns of stores with the databases; trying again in a minute");
                }
            }
        }));
    }
}

/// The changes that a reload makes.
struct Plan {
    kept: Vec<Arc<ConfiguredStore>>,
    added: Vec<StoreConfig>,
    removed: Vec<Arc<ConfiguredStore>>,
    changed: Vec<String>,
}

impl Plan {
    fn new(now: &[Arc<ConfiguredStore>], wanted: Expanded) -> Result<Self, StoresError> {
        let (Some(primary), Some(first)) = (now.first(), wanted.stores.first()) else {
            return Err(StoresError::Config("no store is configured".into()));
        };
        if primary.configured.name != first.name || primary.configured.location() != first.location() {
            return Err(StoresError::Config(format!(
                "the primary store is {} ({}), and the configuration now begins with {} ({}): restart the broker to change its \
                 primary store",
                primary.name(),
                primary.configured.location(),
                first.name,
                first.location()
            )));
        }
        let of_unreachable = |store: &ConfiguredStore| {
            wanted.unreachable.iter().any(|(pattern, _)| pattern.of_database(store.name()).is_some())
        };
        let mut plan = Self { kept: Vec::new(), added: Vec::new(), removed: Vec::new(), changed: Vec::new() };
        for store in now {
            match wanted.stores.iter().find(|one| one.name == store.name()) {
                Some(one) => {
                    if *one != store.configured {
                        plan.changed.push(one.name.clone());
                    }
                    plan.kept.push(store.clone());
                }
                None if of_unreachable(store) => plan.kept.push(store.clone()),
                None => plan.removed.push(store.clone()),
            }
        }
        let is_new = |one: &StoreConfig| !now.iter().any(|store| store.name() == one.name);
        plan.added = wanted.stores.into_iter().filter(is_new).collect();
        Ok(plan)
    }

    /// Fails if a new store could get the number of a store that has not been reached yet.
    fn check_numbers(&self) -> Result<(), StoresError> {
        for unreached in self.kept.iter().filter(|store| store.served().is_err()) {
            let is_open = |one: &&StoreConfig| one.number.is_none() || unreached.configured.number.is_none();
            if let Some(one) = self.added.iter().find(is_open) {
                return Err(StoresError::Config(format!(
                    "the number of store {} is unknown, because its database has not been reached yet, and store {} must not get \
                     the same number: reload when the database is reachable, or set number in both",
                    unreached.name(),
                    one.name
                )));
            }
        }
        Ok(())
    }
}

/// Fails if the store is reachable and is open to new jobs, or has a job that a worker of this broker runs.
fn check_removed(store: &ConfiguredStore) -> Result<(), StoresError> {
    let Ok(served) = store.reachable() else { return Ok(()) };
    let runs = || served.broker.workers.sessions.all().iter().any(|session| !session.held_jobs().is_empty());
    if served.broker.is_closed() && !runs() {
        return Ok(());
    }
    let name = store.name();
    Err(StoresError::Config(format!(
        "store {name} is no longer configured, but it is open or its jobs are running: run `howdah store drain {name}`, which waits for its jobs, and reload again"
    )))
}

/// Stops the broker of a removed store. Its workers resume their sessions without the store.
async fn stop(store: Arc<ConfiguredStore>) {
    store.removed.cancel();
    let Some(served) = store.served.get() else { return };
    let deadline = store.config.drain_deadline;
    served.broker.drain(deadline).await;
    served.broker.stop(deadline).await;
    tracing::info!(store = store.name(), "the broker no longer serves this store");
}

fn warn_unreachable(patterns: &[(StoreConfig, StoreError)]) {
    for (pattern, error) in patterns {
        tracing::warn!(pattern = %pattern.name, %error, "cannot list the databases for a pattern; trying again in a minute");
    }
}
