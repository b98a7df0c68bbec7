//! What is checked before a type moves, and how its move begins.

use std::time::SystemTime;

use futures::future::join_all;

use super::{ASK, Move, Running, Stop};
use crate::{
    error::Error,
    job::{TaskTypeName, TypeSettings},
    store::Actor,
    stores::{Member, SharedFleet},
};

impl Move {
    /// Checks that a type can move to a store: from `from`, or (if that is empty) from where it is at home or begun to move away.
    /// Nothing is changed.
    pub(crate) async fn check(
        fleet: &SharedFleet,
        name: TaskTypeName,
        (from, to): (&str, &str),
        by: Actor,
    ) -> Result<Self, Error> {
        let to_member = fleet.named(to).map_err(|error| as_field(error, "to_store"))?;
        let engine = to_member.reachable()?;
        engine.reachable()?;
        if let (_, Some(closed)) = engine.broker.operator.store().cluster_state().await? {
            return Err(Error::StoreClosed(closed.refusal()));
        }
        let having = having(fleet, &name).await?;
        let from = match from {
            "" => begun(fleet, &having, &name, to).await?.or_else(|| oldest_but(fleet, &having, to)),
            from => {
                let member = fleet.named(from).map_err(|error| as_field(error, "from_store"))?;
                member.reachable()?.reachable()?;
                having.iter().find(|(nth, _)| name_of(fleet, *nth) == Some(from)).map(|(nth, _)| *nth)
            }
        };
        let Some(from) = from else {
            let problem =
                format!("is {name}, of which no other store than {to} has jobs or settings; nothing is to move");
            return Err(Error::invalid("task_type", problem));
        };
        let to = fleet.members().iter().position(|member| member.name() == to).unwrap_or_default();
        if from == to {
            return Err(Error::invalid("to_store", "is the store that the type is to leave; name another one"));
        }
        let old = fleet.members().get(from).ok_or_else(|| Error::Internal("a store is none".into()))?.engine()?;
        if let Some(back) = engine.broker.operator.store().move_of_type(name.as_str()).await? {
            let said =
                format!("task type {name} is moving away from store {}: `{}` goes on", engine.name, back.command());
            return Err(Error::Moving(said));
        }
        let type_id = old.broker.operator.find_type(&name).await?;
        let type_id = type_id.ok_or_else(|| Error::NotFound(format!("store {} has no task type {name}", old.name)))?;
        let others = having.iter().filter(|(nth, _)| *nth != to).map(|(_, created)| *created);
        let oldest = others.min().unwrap_or_else(SystemTime::now);
        Ok(Self { fleet: fleet.clone(), name, from, to, type_id, oldest, by })
    }
}

fn as_field(error: Error, name: &str) -> Error {
    match error {
        Error::Invalid { problem, .. } => Error::invalid(name, problem),
        other => other,
    }
}

fn name_of(fleet: &SharedFleet, nth: usize) -> Option<&str> {
    fleet.members().get(nth).map(Member::name)
}

/// The stores that have the type, and since when. Each must say so: one that is away may be its home.
async fn having(fleet: &SharedFleet, name: &TaskTypeName) -> Result<Vec<(usize, SystemTime)>, Error> {
    let created = fleet.members().iter().enumerate().map(|(nth, member)| async move {
        let broker = member.reachable()?.reachable()?;
        Ok::<_, Error>(broker.type_created(name).await?.map(|created| (nth, created)))
    });
    let known: Result<Vec<_>, Error> = join_all(created).await.into_iter().collect();
    Ok(known?.into_iter().flatten().collect())
}

/// The store from which the type has begun to move there.
async fn begun(
    fleet: &SharedFleet,
    having: &[(usize, SystemTime)],
    name: &TaskTypeName,
    to: &str,
) -> Result<Option<usize>, Error> {
    for (nth, _) in having {
        let Some(member) = fleet.members().get(*nth) else { continue };
        let store = member.engine()?.broker.operator.store().clone();
        if store.move_of_type(name.as_str()).await?.is_some_and(|view| view.to == to) {
            return Ok(Some(*nth));
        }
    }
    Ok(None)
}

/// The store other than this one that has had the type for longest.
fn oldest_but(fleet: &SharedFleet, having: &[(usize, SystemTime)], to: &str) -> Option<usize> {
    let others = having.iter().filter(|(nth, _)| name_of(fleet, *nth) != Some(to));
    others.min_by_key(|(_, created)| *created).map(|(nth, _)| *nth)
}

impl Running<'_> {
    /// The type rests in both stores, and all brokers know it; then the other store is its home.
    pub(super) async fn begin(&mut self) -> Result<(), Stop> {
        self.tell().await?;
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
            let said = format!("task type {name} is being moved to store {} by broker {owner} already", begun.to);
            return Err(Error::Moving(said).into());
        }
        if begun.to != new_name {
            let said = format!(
                "task type {name} is moving to store {}: finish that first, with `howdah type move {name} --to {}`",
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
        let at_home = self.step(&new_name, || new.operator.store().be_home(new_type, oldest)).await?;
        new.operator.settings_changed(at_home).await;
        // From then on nobody enqueues in the old store by itself.
        self.all_know(self.job.to, at_home).await
    }

    /// The type in the other store, where it is made if it is new; with the settings that it has had so far.
    async fn copy_settings(&mut self, is_new: bool) -> Result<(), Stop> {
        let (old, new) = (self.source()?.broker.clone(), self.target()?.broker.clone());
        let (name, by) = (self.job.name.clone(), self.job.by.clone());
        let settings = old.operator.type_settings(&name).await?.unwrap_or_default();
        let there = new.operator.type_settings(&name).await?.unwrap_or_default();
        if settings != there && (is_new || there == TypeSettings::default()) {
            new.operator.update_task_type(name.clone(), settings, &by).await?;
        }
        self.new_type = new.operator.make_type(&name, &by).await?;
        Ok(())
    }

    /// Waits until every broker of a store goes by this version of its settings.
    async fn all_know(&mut self, nth: usize, version: i64) -> Result<(), Stop> {
        let (store, broker) = {
            let engine = self.job.engine(nth)?;
            (engine.name.clone(), engine.broker.clone())
        };
        while !self.step(&store, || broker.operator.store().all_go_by(version)).await? {
            self.pause(ASK).await?;
        }
        Ok(())
    }
}
