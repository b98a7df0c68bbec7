//! Checks and starts the move of a task type.

use std::{sync::Arc, time::SystemTime};

use futures::future::join_all;
use howdah_core::{
    error::Error,
    job::{TaskTypeName, TypeSettings},
};
use howdah_engine::store::Actor;

use super::{ASK, Move, Running, Stop};
use crate::stores::Stores;

/// Number of limit keys whose settings are copied at once.
const KEYS: i32 = 1_000;

impl Move {
    /// Checks that a task type can move from store `from` to store `to`; changes nothing. An empty `from` selects the
    /// old store of an interrupted move to `to`, or else the home of the type.
    pub(crate) async fn check(
        stores: &Arc<Stores>,
        name: TaskTypeName,
        (from, to): (&str, &str),
        by: Actor,
    ) -> Result<Self, Error> {
        let to_store = stores.named(to).map_err(|error| as_field(error, "to_store"))?;
        let served = to_store.reachable()?;
        served.reachable()?;
        if let (_, Some(closed)) = served.broker.operator.store().cluster_state().await? {
            return Err(Error::StoreClosed(closed.refusal()));
        }
        let having = having(stores, &name).await?;
        let from = match from {
            "" => begun(stores, &having, &name, to).await?.or_else(|| oldest_but(stores, &having, to)),
            from => {
                let store = stores.named(from).map_err(|error| as_field(error, "from_store"))?;
                store.reachable()?.reachable()?;
                having.iter().find(|(nth, _)| name_of(stores, *nth) == Some(from)).map(|(nth, _)| *nth)
            }
        };
        let Some(from) = from else {
            let problem =
                format!("is {name}, which has jobs and settings only in store {to}; there is nothing to move");
            return Err(Error::invalid("task_type", problem));
        };
        let to = stores.all().iter().position(|store| store.name() == to).unwrap_or_default();
        if from == to {
            return Err(Error::invalid("to_store", "is the store that the type is moving from; name another one"));
        }
        let old = stores
            .all()
            .get(from)
            .ok_or_else(|| Error::Internal("bug: the old store is not in the list".into()))?
            .served()?;
        if let Some(back) = served.broker.operator.store().move_of_type(name.as_str()).await? {
            let said = format!(
                "task type {name} is moving away from store {}; `{}` resumes that move",
                served.name,
                back.command()
            );
            return Err(Error::Moving(said));
        }
        let type_id = old.broker.operator.find_type(&name).await?;
        let type_id = type_id.ok_or_else(|| Error::NotFound(format!("store {} has no task type {name}", old.name)))?;
        let others = having.iter().filter(|(nth, _)| *nth != to).map(|(_, created)| *created);
        let oldest = others.min().unwrap_or_else(SystemTime::now);
        Ok(Self { stores: stores.clone(), name, from, to, type_id, oldest, by })
    }
}

fn as_field(error: Error, name: &str) -> Error {
    match error {
        Error::Invalid { problem, .. } => Error::invalid(name, problem),
        other => other,
    }
}

fn name_of(stores: &Arc<Stores>, nth: usize) -> Option<&str> {
    stores.all().get(nth).map(|store| store.name())
}

/// Returns the positions of the stores that have the task type, with the type's creation time in each. Fails if a store
/// is unreachable, because that store may be the home.
async fn having(stores: &Arc<Stores>, name: &TaskTypeName) -> Result<Vec<(usize, SystemTime)>, Error> {
    let created = stores.all().iter().enumerate().map(|(nth, store)| async move {
        let broker = store.reachable()?.reachable()?;
        Ok::<_, Error>(broker.type_created(name).await?.map(|created| (nth, created)))
    });
    let known: Result<Vec<_>, Error> = join_all(created).await.into_iter().collect();
    Ok(known?.into_iter().flatten().collect())
}

/// Returns the old store of a move of this task type to store `to` that has begun. `None` if there is no such move.
async fn begun(
    stores: &Arc<Stores>,
    having: &[(usize, SystemTime)],
    name: &TaskTypeName,
    to: &str,
) -> Result<Option<usize>, Error> {
    for (nth, _) in having {
        let Some(store) = stores.all().get(*nth) else { continue };
        let store = store.served()?.broker.operator.store().clone();
        if store.move_of_type(name.as_str()).await?.is_some_and(|view| view.to == to) {
            return Ok(Some(*nth));
        }
    }
    Ok(None)
}

/// Returns the store besides `to` that has had the task type for the longest time.
fn oldest_but(stores: &Arc<Stores>, having: &[(usize, SystemTime)], to: &str) -> Option<usize> {
    let others = having.iter().filter(|(nth, _)| name_of(stores, *nth) != Some(to));
    others.min_by_key(|(_, created)| *created).map(|(nth, _)| *nth)
}

impl Running<'_> {
    /// Pauses the task type in the old and the new store, waits until all brokers know of the pause, and makes the new
    /// store the home of the type.
    pub(super) async fn begin(&mut self) -> Result<(), Stop> {
        self.report().await?;
        let (name, type_id, by) = (self.job.name.clone(), self.job.type_id, self.job.by.clone());
        let (old, new) = (self.source()?.broker.clone(), self.target()?.broker.clone());
        let (old_name, new_name) = self.job.stores();
        let new_number = self.target()?.number;
        let begun = self
            .step(&old_name, || {
                let (to, broker_id) = ((new_name.as_str(), new_number), old.operator.broker_id());
                old.operator.store().begin_move((type_id, name.as_str()), to, broker_id, &by)
            })
            .await?;
        if let Some(owner) = begun.owner {
            let said = format!("task type {name} is already being moved to store {} by broker {owner}", begun.to);
            return Err(Error::Moving(said).into());
        }
        if begun.to != new_name {
            let said = format!(
                "task type {name} is moving to store {}: finish that move first, with `howdah type move {name} --to {}`",
                begun.to, begun.to
            );
            return Err(Error::Moving(said).into());
        }
        old.operator.settings_changed(begun.version).await;
        self.copy_settings(begun.is_new).await?;
        let number = self.source()?.number;
        let new_type = self.new_type;
        let arriving = self.step(&new_name, || new.operator.store().begin_arrival(new_type, number)).await?;
        new.operator.settings_changed(arriving).await;
        self.all_know(self.job.from, begun.version).await?;
        self.all_know(self.job.to, arriving).await?;
        let oldest = self.job.oldest;
        let at_home = self.step(&new_name, || new.operator.store().make_home_store(new_type, oldest)).await?;
        new.operator.settings_changed(at_home).await;
        // Once all brokers use this version of the settings, a job goes to the old store only if the caller names that
        // store.
        self.all_know(self.job.to, at_home).await
    }

    /// Creates the task type in the new store. Copies the settings from the old store if the move is new, or if the
    /// type has no settings in the new store.
    async fn copy_settings(&mut self, is_new: bool) -> Result<(), Stop> {
        let (old, new) = (self.source()?.broker.clone(), self.target()?.broker.clone());
        let (name, by) = (self.job.name.clone(), self.job.by.clone());
        let settings = old.operator.type_settings(&name).await?.unwrap_or_default();
        let there = new.operator.type_settings(&name).await?.unwrap_or_default();
        if settings != there && (is_new || there == TypeSettings::default()) {
            new.operator.update_task_type(&name, &settings, None, &by).await?;
        }
        self.new_type = new.operator.make_type(&name, &by).await?;
        self.copy_key_settings(is_new).await
    }

    /// Copies the own limits and the pauses of the type's limit keys from the old store. If the move is not new, limit keys that
    /// have own settings in the new store keep them.
    async fn copy_key_settings(&mut self, is_new: bool) -> Result<(), Stop> {
        let (old, new) = (self.source()?.broker.clone(), self.target()?.broker.clone());
        let (old_name, new_name) = self.job.stores();
        let (type_id, new_type, mut after) = (self.job.type_id, self.new_type, String::new());
        loop {
            let keys = self.step(&old_name, || old.operator.store().key_settings(type_id, &after, KEYS)).await?;
            let Some(last) = keys.last() else { return Ok(()) };
            after.clone_from(&last.key);
            self.step(&new_name, || new.operator.store().arrive_key_settings(new_type, &keys, is_new)).await?;
        }
    }

    /// Waits until every broker of a store uses this version of the store's settings.
    async fn all_know(&mut self, nth: usize, version: i64) -> Result<(), Stop> {
        let (store, broker) = {
            let served = self.job.served(nth)?;
            (served.name.clone(), served.broker.clone())
        };
        while !self.step(&store, || broker.operator.store().all_brokers_use_version(version)).await? {
            self.pause(ASK).await?;
        }
        Ok(())
    }
}
