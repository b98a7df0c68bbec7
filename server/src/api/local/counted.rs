//! Data that the page shows and that no call of the protocol returns in this form, such as the last job counts. Each function
//! requires the permissions of the call that returns the same data.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, SystemTime},
};

use howdah_core::{
    error::Error,
    job::{Stats, StatsPeriod, TaskTypeName, TypeView},
};
use howdah_engine::{
    access::Operation,
    broker::SharedBroker,
    store::{BrokerView, ReplicaState},
};
use howdah_proto::{Unary as _, v1};
use tonic::Status;

use super::{By, Local};
use crate::api::{
    permit, render,
    verbs::{ListTaskTypes, Verb},
};

/// Task types that a caller may read, with their last job counts.
pub(crate) struct CountedTypes {
    /// Task types, sorted by name.
    pub(crate) types: Vec<v1::TaskType>,
    /// Age of the oldest job counts; `None` before the first count.
    pub(crate) age: Option<Duration>,
    /// Whether the list is incomplete, because a store has more task types than it counts.
    pub(crate) cut: bool,
}

/// A task type with its last job counts.
pub(crate) struct CountedType {
    /// Names of the stores that have the type, sums of their counts, and the settings in the first one.
    pub(crate) view: v1::TaskType,
    /// Age of the oldest job counts; `None` before the first count.
    pub(crate) age: Option<Duration>,
    /// Settings in each store that has the type, with the name of the store. If the broker serves one store, its name is empty.
    pub(crate) settings: Vec<(String, v1::TaskTypeSettings)>,
}

impl Local {
    /// Task types that the caller may read, with their last job counts. Counts anew only where that is cheap.
    pub(crate) async fn counted_types(&self, by: &By) -> Result<CountedTypes, Status> {
        self.check_rule(by)?;
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

    /// Names of the task types that the caller may read and that have ready jobs, but no worker and no recent pull. Paused
    /// types are left out.
    pub(crate) async fn types_without_workers(&self, by: &By) -> Result<HashSet<String>, Status> {
        self.check_rule(by)?;
        let mut all = HashSet::new();
        for (_, broker) in self.stores() {
            let counted = broker.operator.counted_types().await;
            all.extend(broker.operator.types_without_workers(&counted.types).await?);
        }
        all.retain(|name| permit::may(&by.caller, Operation::Read, name));
        Ok(all)
    }

    /// Statistics of all task types together by minute, without run times, oldest first. Minutes without events are left out.
    pub(crate) async fn minutes_of_all(&self, by: &By, since: SystemTime) -> Result<Vec<(SystemTime, Stats)>, Status> {
        self.check_rule(by)?;
        permit::one_or_all(&by.caller, Operation::Read, None)?;
        let mut minutes: BTreeMap<SystemTime, Stats> = BTreeMap::new();
        for (_, broker) in self.stores() {
            // Sums up the latest changes first, if this has not been done for some seconds.
            broker.operator.stats_until().await?;
            for row in broker.operator.stats_of_all(StatsPeriod::Minute, since).await? {
                minutes.entry(row.starts).or_default().add_events(&row.stats);
            }
        }
        Ok(minutes.into_iter().collect())
    }

    /// Returns a task type with its current settings, its last job counts, and their age.
    pub(crate) async fn counted_type(&self, by: &By, name: &str) -> Result<CountedType, Status> {
        let name = self.readable(by, name)?;
        let mut found: Option<CountedType> = None;
        for (store, broker) in self.stores() {
            let Some((shown, age)) = of_store(broker, &name).await? else { continue };
            let settings = (store.to_owned(), shown.settings.clone().unwrap_or_default());
            match &mut found {
                None => {
                    let view = v1::TaskType { store: store.to_owned(), ..shown };
                    found = Some(CountedType { view, age, settings: vec![settings] });
                }
                Some(all) => {
                    add(&mut all.view, store, &shown);
                    all.age = all.age.max(age);
                    all.settings.push(settings);
                }
            }
        }
        Ok(found.ok_or_else(|| Error::NotFound(format!("there is no task type {name}")))?)
    }

    /// Reachable stores with their names. If the broker serves one store, its name is empty.
    fn stores(&self) -> Vec<(&str, &SharedBroker)> {
        if self.all_stores.only().is_some() {
            return vec![("", &self.broker)];
        }
        let served = self.all_stores.served().filter(|served| served.reachable().is_ok());
        served.map(|served| (served.name.as_str(), &served.broker)).collect()
    }

    /// Whether the broker serves one store.
    pub(crate) fn has_one_store(&self) -> bool {
        self.all_stores.only().is_some()
    }

    /// Names of the unreachable stores and of the closed stores. Empty if the broker serves one store. Queries no database.
    pub(crate) fn troubled_stores(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut unreachable, mut closed) = (Vec::new(), Vec::new());
        for store in self.all_stores.all().iter().filter(|_| self.all_stores.only().is_none()) {
            match store.reachable() {
                Err(_) => unreachable.push(store.name()),
                Ok(served) if served.broker.is_closed() => closed.push(store.name()),
                Ok(_) => {}
            }
        }
        (unreachable, closed)
    }

    /// State of the read replica of each store. If the broker serves one store, its name is empty.
    pub(crate) fn replicas(&self) -> Vec<(&str, ReplicaState)> {
        self.stores().into_iter().filter_map(|(name, broker)| Some((name, broker.replica_state()?))).collect()
    }

    /// Storage health of a store, or of the primary store if `store` is empty. `None` if the broker's database role may not
    /// read it.
    pub(crate) async fn storage_health(&self, by: &By, store: &str) -> Result<Option<v1::StorageHealth>, Status> {
        self.check_rule(by)?;
        permit::one_or_all(&by.caller, Operation::Read, None)?;
        let broker =
            if store.is_empty() { &self.broker } else { self.all_stores.named(store)?.served()?.reachable()? };
        let health = broker.operator.storage_health().await;
        Ok(health.map(|(health, examination)| {
            let examination = examination.filter(|_| by.caller.may_everywhere(Operation::Admin));
            render::storage_health(health, examination.as_deref())
        }))
    }

    /// Brokers of each store. If this broker serves one store, its name is empty.
    pub(crate) async fn brokers(&self, by: &By) -> Result<Vec<(&str, BrokerView)>, Status> {
        self.check_rule(by)?;
        permit::one_or_all(&by.caller, Operation::Read, None)?;
        let mut brokers = Vec::new();
        for (store, broker) in self.stores() {
            brokers.extend(broker.operator.list_brokers().await?.into_iter().map(|view| (store, view)));
        }
        Ok(brokers)
    }

    /// Checks that the caller may read the task type. The type need not exist.
    fn readable(&self, by: &By, name: &str) -> Result<TaskTypeName, Status> {
        self.check_rule(by)?;
        let name = TaskTypeName::parse(name).map_err(|problem| Error::invalid("task_type", problem))?;
        let permitted = by.caller.check(Operation::Read, &name).map_err(Status::from);
        permitted.inspect_err(|status| self.note(ListTaskTypes::RPC.name(), by, status))?;
        Ok(name)
    }

    /// Checks the rule of `ListTaskTypes`, which returns the same data.
    fn check_rule(&self, by: &By) -> Result<(), Status> {
        let permitted = by.caller.check_rule(ListTaskTypes::RULE).map_err(Status::from);
        permitted.inspect_err(|status| self.note(ListTaskTypes::RPC.name(), by, status))
    }
}

/// Returns a task type of one store, with the age of its job counts. `None` if the store does not have the type.
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

/// Adds the job counts of another store to a task type. The settings of the first store are kept.
fn add(all: &mut v1::TaskType, store: &str, other: &v1::TaskType) {
    all.store = format!("{}, {store}", all.store);
    let more = other.counts.unwrap_or_default();
    let counts = all.counts.get_or_insert_default();
    counts.ready += more.ready;
    counts.leased += more.leased;
    counts.scheduled += more.scheduled;
    counts.waiting += more.waiting;
    counts.dead += more.dead;
    let time = |time: &prost_types::Duration| (time.seconds, time.nanos);
    all.oldest_ready_age = all.oldest_ready_age.into_iter().chain(other.oldest_ready_age).max_by_key(time);
    all.next_due_in = all.next_due_in.into_iter().chain(other.next_due_in).min_by_key(time);
    all.braked = all.braked.or(other.braked);
}
