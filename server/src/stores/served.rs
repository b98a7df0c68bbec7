//! Brokers of a process, one per store. With a single store, all calls go to that store's broker.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{FutureExt as _, future::join_all};
use howdah_core::{
    config::{Config, StoreConfig},
    error::Error,
    job::{StoreNumber, schedule::CheckTemplate},
};
use howdah_engine::{
    broker::{Broker, Shared, SharedBroker},
    maintain::RefreshTokens,
    metrics::Metrics,
    store::StoreFacts,
    traces::Collector,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    ReadyStore, StoresError, Updated,
    home::Homes,
    moving::Moves,
    stream::{Serving, StreamStore},
};
use crate::credentials::Authenticator;

/// A store whose database was reached, with its broker in this process.
pub(crate) struct ServedStore {
    pub(crate) name: String,
    /// Number of the store. The store's job ids begin with it.
    pub(crate) number: StoreNumber,
    pub(crate) broker: SharedBroker,
    pub(super) facts: StoreFacts,
}

impl ServedStore {
    /// Returns the broker of the store. Fails while the store's circuit breaker is open, because a call must not wait
    /// for an unreachable store.
    pub(crate) fn reachable(&self) -> Result<&SharedBroker, Error> {
        if self.broker.is_unreachable() { Err(unreachable(&self.name)) } else { Ok(&self.broker) }
    }
}

/// A store of the configuration. Its database may not have been reached yet.
pub(crate) struct ConfiguredStore {
    pub(super) configured: StoreConfig,
    pub(super) config: Config,
    pub(crate) metrics: Arc<Metrics>,
    /// The store with its broker. Set when the broker has started.
    pub(super) served: OnceLock<ServedStore>,
    /// Notifies the streams of workers when the store's broker has started.
    serving: watch::Sender<Option<Serving>>,
    /// Cancelled when the store is removed, or when the process starts to stop.
    pub(super) removed: CancellationToken,
}

impl ConfiguredStore {
    pub(crate) fn name(&self) -> &str {
        &self.configured.name
    }

    /// Returns the store number. `None` if no number is configured and the database has not been reached yet.
    pub(crate) fn number(&self) -> Option<StoreNumber> {
        self.served.get().map(|served| served.number).or(self.configured.number)
    }

    /// Returns the store with its broker. Fails if the database has not been reached since the process started.
    pub(crate) fn served(&self) -> Result<&ServedStore, Error> {
        self.served.get().ok_or_else(|| unreachable(self.name()))
    }

    /// Returns the store with its broker. Fails if the database has never been reached, or if the circuit breaker is
    /// open.
    pub(crate) fn reachable(&self) -> Result<&ServedStore, Error> {
        let served = self.served()?;
        served.reachable().map(|_| served)
    }
}

fn unreachable(name: &str) -> Error {
    Error::Unavailable(format!("the database of store {name} cannot be reached now; other stores are not affected"))
}

/// Returns the function with which the broker of the primary store refreshes the tokens of callers.
fn refresh_tokens(authenticator: Arc<Authenticator>) -> RefreshTokens {
    Arc::new(move |version| {
        let authenticator = authenticator.clone();
        async move { authenticator.refresh(version).await }.boxed()
    })
}

/// The configured stores of a process, and their brokers. The list does not change: a reload makes another list, which shares the
/// stores that remain.
pub struct Stores {
    /// Stores in the order of the configuration. The first is the primary store, which keeps tokens and must be reachable at the
    /// start.
    pub(super) all: Vec<Arc<ConfiguredStore>>,
    main: SharedBroker,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) shared: Shared,
    pub(super) check_template: CheckTemplate,
    pub(super) homes: Homes,
    pub(super) moves: Arc<Moves>,
    /// Cancelled when the process starts to stop.
    pub(super) stopping: CancellationToken,
}

impl Stores {
    /// Migrates the stores and starts the broker of the primary store, which must be reachable. Returns the other stores that are
    /// ready, and those that are unreachable.
    pub(super) async fn open(
        config: &Config,
        configured: &[StoreConfig],
        check_template: CheckTemplate,
    ) -> Result<(Self, Updated), StoresError> {
        let mut updated = Updated::of(config, configured, &[]).await?;
        let stopping = CancellationToken::new();
        let of = |one| Arc::new(ConfiguredStore::new(config, one, &stopping));
        let is_skipped = |one: &&StoreConfig| updated.skipped.iter().any(|(skipped, _)| skipped.name == one.name);
        let all: Vec<Arc<ConfiguredStore>> = configured.iter().filter(|one| !is_skipped(one)).map(of).collect();
        let Some(primary) = all.first().cloned() else {
            return Err(StoresError::Config("no store is configured".into()));
        };
        let mut first = updated.ready.remove(0);
        let (config, store) = (first.config.clone(), first.served()?);
        let authenticator = Authenticator::new(&first.config, store.clone(), &primary.metrics);
        let authenticator = Arc::new(authenticator.map_err(StoresError::Config)?);
        let shared = Shared::new(&config);
        let of = |error| StoresError::Store { name: first.name.clone(), error };
        let collector = Collector::from_config(&first.config).map_err(StoresError::Config)?;
        let metrics = primary.metrics.clone();
        let shared_with = (shared.clone(), Some(refresh_tokens(authenticator.clone())));
        let main = Broker::start(config, store, shared_with, metrics, collector, check_template);
        let main = main.await.map_err(of)?;
        primary.set(first, main.clone());
        let (homes, moves) = (Homes::default(), Arc::default());
        Ok((Self { all, main, authenticator, shared, check_template, homes, moves, stopping }, updated))
    }

    /// Returns a list of these stores that shares everything else with this list.
    pub(super) fn with(&self, all: Vec<Arc<ConfiguredStore>>) -> Self {
        Self {
            all,
            main: self.main.clone(),
            authenticator: self.authenticator.clone(),
            shared: self.shared.clone(),
            check_template: self.check_template,
            homes: Homes::default(),
            moves: self.moves.clone(),
            stopping: self.stopping.clone(),
        }
    }

    /// Starts the broker of a migrated store.
    pub(super) async fn start_broker(&self, mut ready: ReadyStore) -> Result<(), StoresError> {
        let Some(store) = self.all.iter().find(|store| store.name() == ready.name) else { return Ok(()) };
        let collector = Collector::from_config(&ready.config).map_err(StoresError::Config)?;
        let (config, database) = (ready.config.clone(), ready.served()?);
        let shared = (self.shared.clone(), None);
        let broker = Broker::start(config, database, shared, store.metrics.clone(), collector, self.check_template);
        match broker.await {
            Ok(broker) => {
                store.set(ready, broker);
                Ok(())
            }
            Err(error) => Err(StoresError::Store { name: ready.name, error }),
        }
    }

    /// Returns the broker of the primary store, which keeps tokens and other global data.
    pub fn main(&self) -> &SharedBroker {
        &self.main
    }

    /// Returns the broker of the only store; `None` if there are several stores.
    pub(crate) fn only(&self) -> Option<&SharedBroker> {
        (self.all.len() == 1).then_some(&self.main)
    }

    /// All configured stores.
    pub(crate) fn all(&self) -> &[Arc<ConfiguredStore>] {
        &self.all
    }

    /// Returns the stores whose database has been reached since the process started.
    pub(crate) fn served(&self) -> impl Iterator<Item = &ServedStore> {
        self.all.iter().filter_map(|store| store.served.get())
    }

    /// Returns the store with this name.
    pub(crate) fn named(&self, name: &str) -> Result<&ConfiguredStore, Error> {
        self.all().iter().map(Arc::as_ref).find(|store| store.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.all.iter().map(|store| store.name()).collect();
            Error::invalid("howdah-store", format!("is {name:?}; this broker serves {}", names.join(", ")))
        })
    }

    /// Returns the name of the primary store.
    pub(crate) fn main_name(&self) -> &str {
        self.all.first().map_or("", |store| store.name())
    }

    /// Returns the name of the store that this broker serves.
    pub(crate) fn name_of(&self, broker: &SharedBroker) -> Option<&str> {
        self.served().find(|served| Arc::ptr_eq(&served.broker, broker)).map(|served| served.name.as_str())
    }

    /// Returns the name of the store to which a job id belongs, even if the store is unreachable. `None` if the id
    /// belongs to no configured store.
    pub(crate) fn store_of(&self, id: i64) -> Option<&str> {
        match self.of_id(id) {
            Ok(served) => served.map(|served| served.name.as_str()),
            Err(_) => self.unreached(id).map(ConfiguredStore::name),
        }
    }

    /// Returns the first store that was never reached and may own the job id: its configured number matches, or it has
    /// no configured number.
    fn unreached(&self, id: i64) -> Option<&ConfiguredStore> {
        let number = StoreNumber::of_id(id)?;
        let mut unreached = self.all.iter().map(Arc::as_ref).filter(|store| store.served.get().is_none());
        unreached.find(|store| store.configured.number.is_none_or(|configured| configured == number))
    }

    /// Returns the store to which a job id belongs. `None` if the id belongs to no configured store. Fails if the id
    /// may belong to a store that has never been reached.
    pub(crate) fn of_id(&self, id: i64) -> Result<Option<&ServedStore>, Error> {
        let Some(number) = StoreNumber::of_id(id) else { return Ok(None) };
        if let Some(served) = self.served().find(|served| served.number == number) {
            return Ok(Some(served));
        }
        self.unreached(id).map_or(Ok(None), |store| Err(unreachable(store.name())))
    }

    /// Returns all configured stores in the form that a worker's stream uses.
    pub(crate) fn for_stream(&self) -> Vec<StreamStore> {
        let of = |store: &Arc<ConfiguredStore>| StreamStore {
            name: store.name().to_owned(),
            configured: store.configured.number,
            serving: store.serving.subscribe(),
        };
        self.all.iter().map(of).collect()
    }

    /// Returns the configuration and the facts of each store whose database has been reached.
    pub(super) fn facts(&self) -> Vec<(StoreConfig, StoreFacts)> {
        let of = |store: &Arc<ConfiguredStore>| Some((store.configured.clone(), store.served.get()?.facts.clone()));
        self.all.iter().filter_map(of).collect()
    }

    /// Drains the brokers of all stores concurrently.
    pub async fn drain(&self, deadline: Duration) {
        self.stopping.cancel();
        join_all(self.served().map(|served| served.broker.drain(deadline))).await;
    }

    /// Stops all brokers. Each writes its queued outcomes and unregisters from its database.
    pub async fn stop(&self, deadline: Duration) {
        join_all(self.served().map(|served| served.broker.stop(deadline))).await;
    }

    /// Completes when a critical task has panicked. The process must then end.
    pub async fn failed(&self) {
        self.shared.panicked.cancelled().await;
    }

    /// Whether a critical task has panicked.
    pub fn has_failed(&self) -> bool {
        self.shared.panicked.is_cancelled()
    }
}

impl ConfiguredStore {
    /// Creates a store whose database has not been reached yet.
    pub(super) fn new(config: &Config, one: &StoreConfig, stopping: &CancellationToken) -> Self {
        let metrics = Arc::new(Metrics::with_exemplars(config.otlp.is_on()));
        Self {
            configured: one.clone(),
            config: config.clone(),
            metrics,
            served: OnceLock::new(),
            serving: watch::Sender::new(None),
            removed: stopping.child_token(),
        }
    }

    fn set(&self, ready: ReadyStore, broker: SharedBroker) {
        let (number, context) = (ready.facts.number, broker.workers.clone());
        tracing::info!(store = %ready.name, %number, "serving a store with this store number");
        let _ = self.served.set(ServedStore { name: ready.name, number, broker, facts: ready.facts });
        // `served` must be set before this message. Streams that receive the message may deliver jobs, and calls for
        // these jobs look up the store in `served`.
        self.serving.send_replace(Some(Serving { number, context }));
    }
}
