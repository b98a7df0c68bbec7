//! What the page shows that is no call of its own: numbers of jobs as they were counted last, settings without counts. The rule of
//! each is that of the call that tells the same.

use std::time::Duration;

use howdah_proto::{Rpc, v1};
use tonic::Status;

use super::{By, Local};
use crate::{
    access::{Operation, rule},
    api::{permit, render},
    broker::SharedBroker,
    error::Error,
    job::{TaskTypeName, TypeView},
    store::{BrokerView, ReplicaState},
};

/// The types that a caller may read, as they were counted last.
pub(crate) struct CountedTypes {
    /// By name.
    pub(crate) types: Vec<v1::TaskType>,
    /// How long ago; `None`: they were not counted yet.
    pub(crate) age: Option<Duration>,
    /// Whether there may be more types, which are not counted.
    pub(crate) cut: bool,
}

impl Local {
    /// Types and their numbers of jobs. No table is read for it, unless counting takes no time.
    pub(crate) async fn counted_types(&self, by: &By) -> Result<CountedTypes, Status> {
        self.check(Rpc::ListTaskTypes, by)?;
        let mut all = CountedTypes { types: Vec::new(), age: None, cut: false };
        for (name, broker) in self.stores() {
            let counted = broker.operator.counted_types().await;
            let seen = counted.types.iter().filter(|view| permit::may(&by.caller, Operation::Read, &view.name));
            let of_store = |view: &TypeView| v1::TaskType { store: name.to_owned(), ..render::task_type(view.clone()) };
            all.types.extend(seen.map(of_store));
            all.age = all.age.max(counted.age());
            all.cut |= counted.is_cut();
        }
        all.types.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// One type: its settings as they are now, its numbers of jobs as they were counted last.
    pub(crate) async fn counted_type(&self, by: &By, name: &str) -> Result<(v1::TaskType, Option<Duration>), Status> {
        let name = self.readable(by, name)?;
        let mut found = None;
        for (store, broker) in self.stores() {
            let Some((shown, age)) = of_store(broker, &name).await? else { continue };
            match &mut found {
                None => found = Some((v1::TaskType { store: store.to_owned(), ..shown }, age)),
                Some((all, _)) => add(all, store, &shown),
            }
        }
        Ok(found.ok_or_else(|| Error::NotFound(format!("there is no task type {name}")))?)
    }

    /// The stores that have answered lately, by name; the only one has none.
    fn stores(&self) -> Vec<(&str, &SharedBroker)> {
        if self.fleet.only().is_some() {
            return vec![("", &self.broker)];
        }
        let engines = self.fleet.engines().filter(|engine| engine.reachable().is_ok());
        engines.map(|engine| (engine.name.as_str(), &engine.broker)).collect()
    }

    /// Whether the broker serves one store.
    pub(crate) fn has_one_store(&self) -> bool {
        self.fleet.only().is_some()
    }

    /// The names of those of several stores that cannot be reached now, and of those that take no new jobs. No database is asked.
    pub(crate) fn troubled_stores(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut away, mut closed) = (Vec::new(), Vec::new());
        for member in self.fleet.members().iter().filter(|_| self.fleet.only().is_none()) {
            match member.reachable() {
                Err(_) => away.push(member.name()),
                Ok(engine) if engine.broker.is_closed() => closed.push(member.name()),
                Ok(_) => {}
            }
        }
        (away, closed)
    }

    /// The replicas that are read, by their stores; the only store has no name.
    pub(crate) fn replicas(&self) -> Vec<(&str, ReplicaState)> {
        self.stores().into_iter().filter_map(|(name, broker)| Some((name, broker.replica_state()?))).collect()
    }

    /// The health of the storage, of the main store if none is named; `None`: Postgres does not show it.
    pub(crate) async fn storage_health(&self, by: &By, store: &str) -> Result<Option<v1::StorageHealth>, Status> {
        self.check(Rpc::ListTaskTypes, by)?;
        permit::one_or_all(&by.caller, Operation::Read, None)?;
        let broker = if store.is_empty() { &self.broker } else { self.fleet.named(store)?.engine()?.reachable()? };
        Ok(broker.operator.storage_health().await.map(render::storage_health))
    }

    /// The brokers of each store, which is named if there are several.
    pub(crate) async fn brokers(&self, by: &By) -> Result<Vec<(&str, BrokerView)>, Status> {
        self.check(Rpc::ListTaskTypes, by)?;
        permit::one_or_all(&by.caller, Operation::Read, None)?;
        let mut brokers = Vec::new();
        for (store, broker) in self.stores() {
            brokers.extend(broker.operator.list_brokers().await?.into_iter().map(|view| (store, view)));
        }
        Ok(brokers)
    }

    /// A type that the caller may read, whether it exists or not.
    fn readable(&self, by: &By, name: &str) -> Result<TaskTypeName, Status> {
        self.check(Rpc::ListTaskTypes, by)?;
        let name = TaskTypeName::parse(name).map_err(|problem| Error::invalid("task_type", problem))?;
        let permitted = by.caller.check(Operation::Read, &name).map_err(Status::from);
        permitted.inspect_err(|status| self.note(Rpc::ListTaskTypes.name(), by, status))?;
        Ok(name)
    }

    fn check(&self, rpc: Rpc, by: &By) -> Result<(), Status> {
        let permitted = by.caller.check_rule(rule(rpc)).map_err(Status::from);
        permitted.inspect_err(|status| self.note(rpc.name(), by, status))
    }
}

/// A type of one store, and how long ago its jobs were counted; `None`: the store does not have it.
async fn of_store(
    broker: &SharedBroker,
    name: &TaskTypeName,
) -> Result<Option<(v1::TaskType, Option<Duration>)>, Error> {
    let counted = broker.operator.counted_types().await;
    let Some(settings) = broker.operator.type_settings(name).await? else { return Ok(None) };
    let counts = counted.types.iter().find(|view| view.name == name.as_str());
    let mut shown = counts.map(|view| render::task_type(view.clone())).unwrap_or_default();
    shown.name = name.to_string();
    shown.settings = Some(render::settings(&settings));
    Ok(Some((shown, counted.age().filter(|_| counts.is_some()))))
}

/// Adds the jobs of another store that has the type. Its settings are those of the first.
fn add(all: &mut v1::TaskType, store: &str, other: &v1::TaskType) {
    all.store = format!("{}, {store}", all.store);
    let more = other.counts.unwrap_or_default();
    let counts = all.counts.get_or_insert_default();
    counts.ready += more.ready;
    counts.leased += more.leased;
    counts.scheduled += more.scheduled;
    counts.waiting += more.waiting;
    counts.dead += more.dead;
}
