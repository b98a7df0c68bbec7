//! Brokers of a process, one per store. With a single store, all calls go to that store's broker.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::join_all;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    ReadyStore, StoresError, assign_numbers, has_numbers,
    home::Homes,
    moving::Moves,
    open::open,
    reconnect,
    stream::{Serving, StreamStore},
    update,
};
use crate::{
    access::Access,
    broker::{Broker, Shared, SharedBroker},
    config::{Config, StoreConfig},
    error::Error,
    job::{StoreNumber, schedule::CheckTemplate},
    metrics::Metrics,
    store::StoreFacts,
    traces::Collector,
};

/// A store whose database was reached, with its broker in this process.
pub(crate) struct ServedStore {
    /// Name of the store.
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
}

impl ConfiguredStore {
    /// Name of the store.
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

/// The configured stores of a process, and their brokers.
pub struct Stores {
    /// Stores in the order of the configuration. The first is the primary store, which keeps tokens and must be reachable at the
    /// start.
    pub(super) all: Vec<ConfiguredStore>,
    main: SharedBroker,
    pub(super) shared: Shared,
    pub(super) check_template: CheckTemplate,
    pub(super) homes: Homes,
    pub(super) moves: Moves,
    /// Cancelled when the process starts to stop.
    pub(super) stopping: CancellationToken,
}

/// The stores of a process, shared by its gRPC and HTTP ports.
pub type SharedStores = Arc<Stores>;

impl Stores {
    /// Migrates the stores and starts a broker for each. The primary store must be reachable. The brokers of
    /// unreachable stores start later, once their databases are reachable.
    pub async fn start(config: &Config, check_template: CheckTemplate) -> Result<SharedStores, StoresError> {
        let configured = config.each_store();
        let has_numbers = has_numbers(&configured);
        let updated = join_all(configured.iter().map(|one| update(config, one, has_numbers))).await;
        let (mut ready, mut ready_configured, mut unreachable) = (Vec::new(), Vec::new(), Vec::new());
        for (one, updated) in configured.iter().zip(updated) {
            match updated? {
                Ok(store) => {
                    ready.push(store);
                    ready_configured.push(one.clone());
                }
                Err(error) if ready.is_empty() || !reconnect::is_temporary(&error) => {
                    return Err(StoresError::Store { name: one.name.clone(), error });
                }
                Err(error) => unreachable.push((one, error)),
            }
        }
        reconnect::check_numbers(&ready_configured, &ready, &unreachable)?;
        assign_numbers(&ready_configured, &mut ready, &[], START).await?;
        let all: Vec<ConfiguredStore> = configured.iter().map(|one| ConfiguredStore::new(config, one)).collect();
        let mut ready = ready.into_iter();
        let (Some(first), Some(primary)) = (ready.next(), all.first()) else {
            return Err(StoresError::Config("no store is configured".into()));
        };
        let access = Access::new(&first.config, first.store.clone(), &primary.metrics).map_err(StoresError::Config)?;
        let shared = Shared::new(config, access, &primary.metrics);
        let of = |error| StoresError::Store { name: first.name.clone(), error };
        open(&first).await?;
        let collector = Collector::from_config(&first.config).map_err(StoresError::Config)?;
        let (config, store) = (first.config.clone(), first.store.clone());
        let metrics = primary.metrics.clone();
        let main = Broker::start(config, store, (shared.clone(), true), metrics, collector, check_template);
        let main = main.await.map_err(of)?;
        primary.set(first, main.clone());
        let stopping = CancellationToken::new();
        let stores = Arc::new(Self {
            all,
            main,
            shared,
            check_template,
            homes: Homes::default(),
            moves: Moves::default(),
            stopping,
        });
        for one in ready {
            stores.start_one(one).await?;
        }
        for (one, error) in unreachable {
            stores.retry_start(&one.name, &error);
        }
        Ok(stores)
    }

    /// Starts the broker of a migrated store. If the database has become unreachable, retries in the background.
    async fn start_one(self: &Arc<Self>, ready: ReadyStore) -> Result<(), StoresError> {
        let name = ready.name.clone();
        match self.start_broker(ready).await {
            Err(StoresError::Store { error, .. }) if reconnect::is_temporary(&error) => {
                self.retry_start(&name, &error);
                Ok(())
            }
            result => result,
        }
    }

    /// Starts the broker of a migrated store.
    pub(super) async fn start_broker(&self, ready: ReadyStore) -> Result<(), StoresError> {
        let Some(store) = self.all.iter().find(|store| store.name() == ready.name) else { return Ok(()) };
        open(&ready).await?;
        let collector = Collector::from_config(&ready.config).map_err(StoresError::Config)?;
        let (config, database) = (ready.config.clone(), ready.store.clone());
        let shared = (self.shared.clone(), false);
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
    pub(crate) fn all(&self) -> &[ConfiguredStore] {
        &self.all
    }

    /// Returns the stores whose database has been reached since the process started.
    pub(crate) fn served(&self) -> impl Iterator<Item = &ServedStore> {
        self.all.iter().filter_map(|store| store.served.get())
    }

    /// Returns the store with this name.
    pub(crate) fn named(&self, name: &str) -> Result<&ConfiguredStore, Error> {
        self.all.iter().find(|store| store.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.all.iter().map(ConfiguredStore::name).collect();
            Error::invalid("howdah-store", format!("is {name:?}; this broker serves {}", names.join(", ")))
        })
    }

    /// Returns the name of the primary store.
    pub(crate) fn main_name(&self) -> &str {
        self.all.first().map_or("", ConfiguredStore::name)
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
        let mut unreached = self.all.iter().filter(|store| store.served.get().is_none());
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
        let of = |store: &ConfiguredStore| StreamStore {
            name: store.name().to_owned(),
            configured: store.configured.number,
            serving: store.serving.subscribe(),
        };
        self.all.iter().map(of).collect()
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

/// Name in the audit log for the assignment of store numbers at the start of a process.
pub(super) const START: &str = "the start of a broker";

impl ConfiguredStore {
    fn new(config: &Config, one: &StoreConfig) -> Self {
        let metrics = Arc::new(Metrics::with_exemplars(config.otlp.is_on()));
        Self {
            configured: one.clone(),
            config: config.clone(),
            metrics,
            served: OnceLock::new(),
            serving: watch::Sender::new(None),
        }
    }

    fn set(&self, ready: ReadyStore, broker: SharedBroker) {
        let facts = ready.facts.unwrap_or_else(|| StoreFacts {
            number: StoreNumber::default(),
            identity: broker.database_id.clone(),
            has_ids: true,
        });
        let (number, context) = (facts.number, broker.workers.clone());
        let _ = self.served.set(ServedStore { name: ready.name, number, broker, facts });
        // `served` must be set before this message. Streams that receive the message may deliver jobs, and calls for
        // these jobs look up the store in `served`.
        self.serving.send_replace(Some(Serving { number, context }));
    }
}
