//! The brokers of a process: one for each store. With one store, it is that store's broker and nothing else.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::join_all;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    ReadyStore, StoresError, give_numbers, has_numbers,
    home::Homes,
    late,
    moving::Moves,
    open::open,
    stream::{EngineOfStream, Serving},
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

/// A store that is served.
pub(crate) struct Engine {
    /// Its name.
    pub(crate) name: String,
    /// Its number, which the ids of its jobs begin with.
    pub(crate) number: StoreNumber,
    /// Serves it.
    pub(crate) broker: SharedBroker,
    pub(super) facts: StoreFacts,
}

impl Engine {
    /// Its broker, if the store has answered lately: a call for a store that is away must not wait for it.
    pub(crate) fn reachable(&self) -> Result<&SharedBroker, Error> {
        if self.broker.is_away() { Err(away(&self.name)) } else { Ok(&self.broker) }
    }
}

/// A store of the configuration.
pub(crate) struct Member {
    pub(super) configured: StoreConfig,
    pub(super) config: Config,
    pub(crate) metrics: Arc<Metrics>,
    /// Set when its database was reached.
    pub(super) engine: OnceLock<Engine>,
    /// The same, for the streams of workers.
    serving: watch::Sender<Option<Serving>>,
}

impl Member {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.configured.name
    }

    /// Its number, if it is known.
    pub(crate) fn number(&self) -> Option<StoreNumber> {
        self.engine.get().map(|engine| engine.number).or(self.configured.number)
    }

    /// The store, as soon as its database was reached.
    pub(crate) fn engine(&self) -> Result<&Engine, Error> {
        self.engine.get().ok_or_else(|| away(self.name()))
    }

    /// The same, if it has answered lately.
    pub(crate) fn reachable(&self) -> Result<&Engine, Error> {
        let engine = self.engine()?;
        engine.reachable().map(|_| engine)
    }
}

fn away(name: &str) -> Error {
    Error::Unavailable(format!("the database of store {name} cannot be reached now; other stores are not concerned"))
}

/// The brokers of a process.
pub struct Fleet {
    /// In the order of the configuration. The first keeps tokens, and is there from the start.
    pub(super) members: Vec<Member>,
    main: SharedBroker,
    pub(super) shared: Shared,
    pub(super) check_template: CheckTemplate,
    pub(super) homes: Homes,
    pub(super) moves: Moves,
    /// Cancelled when the process begins to stop.
    pub(super) stopping: CancellationToken,
}

/// Shared by the ports.
pub type SharedFleet = Arc<Fleet>;

impl Fleet {
    /// Brings the stores up to date, and starts a broker on each. The first store must be reachable; others are started when they
    /// are.
    pub async fn start(config: &Config, check_template: CheckTemplate) -> Result<SharedFleet, StoresError> {
        let configured = config.each_store();
        let has_numbers = has_numbers(&configured);
        let updated = join_all(configured.iter().map(|one| update(config, one, has_numbers))).await;
        let (mut ready, mut ready_configured, mut away) = (Vec::new(), Vec::new(), Vec::new());
        for (one, updated) in configured.iter().zip(updated) {
            match updated? {
                Ok(store) => {
                    ready.push(store);
                    ready_configured.push(one.clone());
                }
                Err(error) if ready.is_empty() || !late::may_come_later(&error) => {
                    return Err(StoresError::Store { name: one.name.clone(), error });
                }
                Err(error) => away.push((one, error)),
            }
        }
        late::check_numbers(&ready_configured, &ready, &away)?;
        give_numbers(&ready_configured, &mut ready, &[], START).await?;
        let members: Vec<Member> = configured.iter().map(|one| Member::new(config, one)).collect();
        let mut ready = ready.into_iter();
        let (Some(first), Some(member)) = (ready.next(), members.first()) else {
            return Err(StoresError::Config("no store is configured".into()));
        };
        let access = Access::new(&first.config, first.store.clone(), &member.metrics).map_err(StoresError::Config)?;
        let shared = Shared::new(config, access, &member.metrics);
        let of = |error| StoresError::Store { name: first.name.clone(), error };
        open(&first).await?;
        let collector = Collector::of(&first.config).map_err(StoresError::Config)?;
        let (config, store) = (first.config.clone(), first.store.clone());
        let metrics = member.metrics.clone();
        let main = Broker::start(config, store, (shared.clone(), true), metrics, collector, check_template);
        let main = main.await.map_err(of)?;
        member.set(first, main.clone());
        let stopping = CancellationToken::new();
        let fleet = Arc::new(Self {
            members,
            main,
            shared,
            check_template,
            homes: Homes::default(),
            moves: Moves::default(),
            stopping,
        });
        for store in ready {
            fleet.start_one(store).await?;
        }
        for (one, error) in away {
            fleet.start_late(&one.name, &error);
        }
        Ok(fleet)
    }

    /// Starts the broker of a store that is up to date; if its database has gone since, later.
    async fn start_one(self: &Arc<Self>, store: ReadyStore) -> Result<(), StoresError> {
        let name = store.name.clone();
        match self.engine_of(store).await {
            Err(StoresError::Store { error, .. }) if late::may_come_later(&error) => {
                self.start_late(&name, &error);
                Ok(())
            }
            result => result,
        }
    }

    /// Starts the broker of a store that is up to date.
    pub(super) async fn engine_of(&self, store: ReadyStore) -> Result<(), StoresError> {
        let Some(member) = self.members.iter().find(|member| member.name() == store.name) else { return Ok(()) };
        open(&store).await?;
        let collector = Collector::of(&store.config).map_err(StoresError::Config)?;
        let (config, database) = (store.config.clone(), store.store.clone());
        let shared = (self.shared.clone(), false);
        let broker = Broker::start(config, database, shared, member.metrics.clone(), collector, self.check_template);
        match broker.await {
            Ok(broker) => {
                member.set(store, broker);
                Ok(())
            }
            Err(error) => Err(StoresError::Store { name: store.name, error }),
        }
    }

    /// The store that keeps tokens, the identity that clients see, and what is not of one store.
    pub fn main(&self) -> &SharedBroker {
        &self.main
    }

    /// The broker of the only store.
    pub(crate) fn only(&self) -> Option<&SharedBroker> {
        (self.members.len() == 1).then_some(&self.main)
    }

    /// Every store of the configuration.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The stores that were reached.
    pub(crate) fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.members.iter().filter_map(|member| member.engine.get())
    }

    /// The store of this name.
    pub(crate) fn named(&self, name: &str) -> Result<&Member, Error> {
        self.members.iter().find(|member| member.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.members.iter().map(Member::name).collect();
            Error::invalid("howdah-store", format!("is {name:?}; this broker serves {}", names.join(", ")))
        })
    }

    /// The name of the main store.
    pub(crate) fn main_name(&self) -> &str {
        self.members.first().map_or("", Member::name)
    }

    /// The name of the store that this broker serves.
    pub(crate) fn name_of(&self, broker: &SharedBroker) -> Option<&str> {
        self.engines().find(|engine| Arc::ptr_eq(&engine.broker, broker)).map(|engine| engine.name.as_str())
    }

    /// The name of the store of a job, also if it cannot be reached; `None`: no store has such an id.
    pub(crate) fn store_of(&self, id: i64) -> Option<&str> {
        match self.of_id(id) {
            Ok(engine) => engine.map(|engine| engine.name.as_str()),
            Err(_) => self.unreached(id).map(Member::name),
        }
    }

    /// The store of a job that was never reached. Its number is known only to the configuration.
    fn unreached(&self, id: i64) -> Option<&Member> {
        let number = StoreNumber::of_id(id)?;
        let mut unreached = self.members.iter().filter(|member| member.engine.get().is_none());
        unreached.find(|member| member.configured.number.is_none_or(|configured| configured == number))
    }

    /// The store of a job; `None`: no store has such an id.
    pub(crate) fn of_id(&self, id: i64) -> Result<Option<&Engine>, Error> {
        let Some(number) = StoreNumber::of_id(id) else { return Ok(None) };
        if let Some(engine) = self.engines().find(|engine| engine.number == number) {
            return Ok(Some(engine));
        }
        self.unreached(id).map_or(Ok(None), |member| Err(away(member.name())))
    }

    /// The engines of a worker's stream.
    pub(crate) fn of_stream(&self) -> Vec<EngineOfStream> {
        let of = |member: &Member| EngineOfStream {
            name: member.name().to_owned(),
            configured: member.configured.number,
            serving: member.serving.subscribe(),
        };
        self.members.iter().map(of).collect()
    }

    /// Stops taking part, in all stores at once.
    pub async fn drain(&self, deadline: Duration) {
        self.stopping.cancel();
        join_all(self.engines().map(|engine| engine.broker.drain(deadline))).await;
    }

    /// Writes what is pending, and unregisters from all databases.
    pub async fn stop(&self, deadline: Duration) {
        join_all(self.engines().map(|engine| engine.broker.stop(deadline))).await;
    }

    /// Ready when a critical task has panicked: the process cannot go on.
    pub async fn failed(&self) {
        self.shared.panicked.cancelled().await;
    }

    /// Whether a critical task has panicked.
    pub fn has_failed(&self) -> bool {
        self.shared.panicked.is_cancelled()
    }
}

/// Who changes stores here, for the audit.
pub(super) const START: &str = "the start of a broker";

impl Member {
    fn new(config: &Config, one: &StoreConfig) -> Self {
        let metrics = Arc::new(Metrics::with_exemplars(config.otlp.is_on()));
        Self {
            configured: one.clone(),
            config: config.clone(),
            metrics,
            engine: OnceLock::new(),
            serving: watch::Sender::new(None),
        }
    }

    fn set(&self, store: ReadyStore, broker: SharedBroker) {
        let facts = store.facts.unwrap_or_else(|| StoreFacts {
            number: StoreNumber::default(),
            identity: broker.database_id.clone(),
            has_ids: true,
        });
        let (number, context) = (facts.number, broker.workers.clone());
        let _ = self.engine.set(Engine { name: store.name, number, broker, facts });
        // Last: whoever gets its jobs asks for its engine.
        self.serving.send_replace(Some(Serving { number, context }));
    }
}
