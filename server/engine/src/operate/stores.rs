//! State and settings of a store: closing and opening, cluster settings, tokens, the audit log.

use std::time::{Duration, SystemTime};

use howdah_core::{
    config::duration_text,
    error::Error,
    job::{Closed, ClusterSettings, ClusterSettingsChange, StoreNumber, TaskTypeName, TypeId},
};

use super::Operator;
use crate::store::{Actor, AuditEntry, AuditQuery, ReplicaState, Store, TokenView};

/// Maximum time by which tests can advance the clock of a database.
pub const LONGEST_ADVANCE: Duration = Duration::from_hours(3650 * 24);

/// State of a store.
#[derive(Clone, Debug)]
pub struct StoreView {
    pub number: StoreNumber,
    /// When and by whom the store was closed. `None` while it accepts new jobs.
    pub closed: Option<Closed>,
    /// Job counts by state, as in [`TypeView`](howdah_core::job::TypeView), from the last count, and the age of the count.
    pub counted: Option<([i64; 5], Duration)>,
    /// Whether the store has unfinished jobs.
    pub has_unfinished: bool,
    /// State of the store's read replica, if it has one.
    pub replica: Option<ReplicaState>,
}

impl Operator {
    /// Reads the current state of the store.
    pub async fn store_view(&self) -> Result<StoreView, Error> {
        let store = &self.context.store;
        let (_, closed) = store.cluster_state().await?;
        let facts = store.facts().await?;
        let counted = self.counted_types().await;
        let mut sum = [0; 5];
        for view in &counted.types {
            sum.iter_mut().zip(view.counts).for_each(|(sum, count)| *sum += count);
        }
        let counted = counted.age().map(|age| (sum, age));
        Ok(StoreView {
            number: facts.number,
            closed,
            counted,
            has_unfinished: store.has_unfinished().await?,
            replica: store.replica_state(),
        })
    }

    /// Closes the store to new jobs. `name` is the name of the store.
    pub async fn close_store(&self, name: &str, by: &Actor) -> Result<(), Error> {
        if let Some(version) = self.context.store.close(name, by).await? {
            tracing::info!(store = name, "the store is closed to new jobs");
            self.context.settings_changed(version).await;
        }
        Ok(())
    }

    /// Writes an audit entry for a reload that has added or removed the stores with these names.
    pub async fn record_reload(&self, names: Vec<String>, by: &Actor) -> Result<(), Error> {
        if !names.is_empty() {
            self.context.store.record_stores(names, by).await?;
        }
        Ok(())
    }

    /// Returns the database of the store, for a move of a task type between two stores.
    pub fn store(&self) -> &Store {
        &self.context.store
    }

    /// Returns the current id of this broker in the store.
    pub fn broker_id(&self) -> i32 {
        self.context.dispatch.broker_id()
    }

    /// Tells this broker that a move of a task type has changed settings of the store, with the new version of the settings.
    pub async fn settings_changed(&self, version: i64) {
        self.context.settings_changed(version).await;
    }

    /// Returns the id of the task type with this name. `None` if it does not exist.
    pub async fn find_type(&self, name: &TaskTypeName) -> Result<Option<TypeId>, Error> {
        Ok(self.context.registry.find(name).await?)
    }

    /// Returns the id of the task type with this name. Creates the type if it is new.
    pub async fn make_type(&self, name: &TaskTypeName, by: &Actor) -> Result<TypeId, Error> {
        let ids = self.context.registry.resolve(std::slice::from_ref(name), by.name()).await?;
        ids.first()
            .copied()
            .ok_or_else(|| Error::Internal(format!("bug: task type {name} has no id after its creation")))
    }

    /// Returns the old and new ids of the jobs in `ids` that have moved to other stores.
    pub async fn moved_jobs(&self, ids: &[i64]) -> Result<Vec<(i64, i64)>, Error> {
        if ids.is_empty() || !self.context.registry.has_moved() {
            return Ok(Vec::new());
        }
        Ok(self.context.store.moved_jobs(ids).await?)
    }

    /// Returns an error if the job is moving to another store, else `None`.
    pub async fn on_its_way(&self, id: i64) -> Result<Option<Error>, Error> {
        if !self.context.registry.has_moved() {
            return Ok(None);
        }
        let view = self.context.store.move_of_job(id).await?;
        Ok(view.map(|view| {
            Error::Moving(format!("job {id} is being moved to store {}. {}", view.to, view.progress_note()))
        }))
    }

    /// Opens the store. The maintenance task for schedules then fires those that are due.
    pub async fn open_store(&self, name: &str, by: &Actor) -> Result<(), Error> {
        if let Some(version) = self.context.store.reopen(name, by).await? {
            tracing::info!(store = name, "the store is open to new jobs");
            self.context.settings_changed(version).await;
            self.context.sweep_now.notify_one();
        }
        Ok(())
    }

    /// Reads the stored cluster settings.
    pub async fn cluster_settings(&self) -> Result<ClusterSettings, Error> {
        Ok(self.context.store.cluster_settings().await?)
    }

    /// Changes cluster settings. Returns all settings after the change.
    pub async fn update_cluster_settings(
        &self,
        change: &ClusterSettingsChange,
        by: &Actor,
    ) -> Result<ClusterSettings, Error> {
        let (settings, version) = self.context.store.update_cluster_settings(change, by).await?;
        tracing::info!(?settings, "the cluster settings have changed");
        self.context.settings_changed(version).await;
        Ok(settings)
    }

    /// Advances the clock of a test database. Returns the new time. This broker then looks for everything that is due; other
    /// brokers do so after a notification.
    pub async fn advance_clock(&self, duration: Duration, by: &Actor) -> Result<SystemTime, Error> {
        let store = &self.context.store;
        let Some(ahead) = store.clock_ahead().await? else {
            let problem = "the clock of this database cannot be advanced: only the databases of `howdah dev --ephemeral`, for \
                           tests, have such a clock";
            return Err(Error::Precondition(problem.into()));
        };
        if ahead + duration > LONGEST_ADVANCE {
            let [by, ahead] = [duration, ahead].map(duration_text);
            let problem =
                format!("is {by}, and the clock is {ahead} ahead already; together at most 3650 days are allowed");
            return Err(Error::invalid("duration", problem));
        }
        let version = store.advance_clock(duration, by).await?;
        self.context.settings_changed(version).await;
        self.context.look_again().await?;
        Ok(store.clock().await?)
    }

    /// Returns the task types of jobs, each with its id and name. Omits jobs that do not exist.
    pub async fn types_of(&self, ids: &[i64]) -> Result<Vec<(i64, TypeId, String)>, Error> {
        Ok(self.context.store.types_of(ids).await?)
    }

    /// Returns a page of the tokens whose ids come after `after`.
    pub async fn list_tokens(&self, after: &str, ended: bool, size: usize) -> Result<Vec<TokenView>, Error> {
        Ok(self.context.store.list_tokens(after, ended, size as i32).await?)
    }

    /// Returns a page of the audit log.
    pub async fn list_audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.context.store.list_audit(query).await?)
    }
}
