//! Task types and their settings, limit keys, and storage health.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_core::{
    error::Error,
    job::{StatsPeriod, TaskTypeName, TypeSettings, TypeView},
};

use super::Operator;
use crate::{
    doctor::Examination,
    maintain::{job_gauges::Counted, statistics},
    store::{Actor, BrokerView, LimitKeyView, StatsRange, StatsRow, StorageHealth},
};

/// Maximum number of brokers in a list.
const MOST_BROKERS: i32 = 200;

impl Operator {
    /// Returns a page of the task types whose names come after `after`, with their job counts.
    pub async fn list_task_types(
        &self,
        after: String,
        page_size: usize,
        only: Option<TaskTypeName>,
    ) -> Result<Vec<TypeView>, Error> {
        let only = only.as_ref().map(TaskTypeName::as_str);
        Ok(self.context.store.list_task_types(&after, page_size as i32, only).await?)
    }

    /// Like `list_task_types`, but with the last job counts where available, and their age. Settings are current.
    pub async fn list_counted_types(
        &self,
        after: String,
        page_size: usize,
        only: Option<TaskTypeName>,
    ) -> Result<(Vec<TypeView>, Option<Duration>), Error> {
        let counted = self.counted_types().await;
        let is_asked = |view: &&TypeView| match &only {
            Some(name) => view.name == name.as_str(),
            None => view.name > after,
        };
        let mut types: Vec<TypeView> = counted.types.iter().filter(is_asked).take(page_size).cloned().collect();
        let age = counted.age().filter(|_| !types.is_empty());
        let mut settings: HashMap<_, _> =
            self.context.store.all_settings().await?.into_iter().map(|row| (row.name, row.settings)).collect();
        for view in &mut types {
            view.settings = settings.remove(&view.name).unwrap_or_default();
        }
        let is_whole = match &only {
            Some(_) => !types.is_empty(),
            None => types.len() >= page_size || (!counted.is_cut() && counted.age().is_some()),
        };
        if !is_whole {
            let after = types.last().map_or(after, |view| view.name.clone());
            types.extend(self.list_task_types(after, page_size - types.len(), only).await?);
        }
        Ok((types, age))
    }

    /// Returns the task types with their last job counts.
    pub async fn counted_types(&self) -> Arc<Counted> {
        self.context.job_counts.look(&self.context.store).await
    }

    /// Brokers, newest first.
    pub async fn list_brokers(&self) -> Result<Vec<BrokerView>, Error> {
        Ok(self.context.store.list_brokers(MOST_BROKERS).await?)
    }

    /// Returns the settings of a task type. `None` if the type does not exist.
    pub async fn type_settings(&self, name: &TaskTypeName) -> Result<Option<TypeSettings>, Error> {
        let Some(id) = self.context.registry.find(name).await? else { return Ok(None) };
        let all = self.context.store.all_settings().await?;
        Ok(Some(all.into_iter().find(|row| row.id == id).map(|row| row.settings).unwrap_or_default()))
    }

    /// Storage health, and the last examination of the database. `None` if the broker's role may not read the health, so
    /// that the caller can still return the rest of its response.
    pub async fn storage_health(&self) -> Option<(StorageHealth, Option<Arc<Examination>>)> {
        let health = self.context.store.storage_health().await;
        let health =
            health.inspect_err(|error| tracing::debug!(%error, "cannot read the health of the storage")).ok()?;
        Some((health, self.context.examination.lock().clone()))
    }

    /// Creates the types that a principal's schedule names, so that they count towards the limits of the principal. The broker
    /// that fires the schedule later does not know the principal.
    pub async fn create_types(&self, names: &[TaskTypeName], by: &Actor) -> Result<(), Error> {
        if !by.name().is_empty() {
            self.context.registry.resolve(names, by.name()).await?;
        }
        Ok(())
    }

    /// Pauses a limit key of a type, and creates the key if it is new. Without a duration, the key is paused until it is
    /// resumed.
    pub async fn pause_limit_key(
        &self,
        name: TaskTypeName,
        key: &str,
        duration: Option<Duration>,
        by: &Actor,
    ) -> Result<(), Error> {
        let ids = self.context.registry.resolve(&[name], by.name()).await?;
        for id in ids {
            self.context.store.pause_limit_key(id, key, duration, by).await?;
        }
        self.context.wake.limit_in(Duration::ZERO);
        Ok(())
    }

    /// Resumes a limit key.
    pub async fn resume_limit_key(&self, name: &TaskTypeName, key: &str, by: &Actor) -> Result<(), Error> {
        if let Some(id) = self.context.registry.find(name).await? {
            self.context.store.resume_limit_key(id, key, by).await?;
            self.context.wake.limit_in(Duration::ZERO);
        }
        Ok(())
    }

    /// Sets the own limit of a limit key of a type, and creates the key if it is new. `None` removes the limit.
    pub async fn limit_key(
        &self,
        name: TaskTypeName,
        key: &str,
        max_running: Option<i32>,
        by: &Actor,
    ) -> Result<(), Error> {
        let ids = self.context.registry.resolve(std::slice::from_ref(&name), by.name()).await?;
        for id in ids {
            self.context.store.limit_key(id, name.as_str(), key, max_running, by).await?;
        }
        self.context.wake.limit_in(Duration::ZERO);
        Ok(())
    }

    /// Returns a page of the limit keys of a task type that have waiting jobs, are paused, or have their own limit. The page
    /// starts after the key `after`.
    pub async fn list_limit_keys(
        &self,
        name: &TaskTypeName,
        after: &str,
        page_size: usize,
    ) -> Result<Vec<LimitKeyView>, Error> {
        let Some(id) = self.context.registry.find(name).await? else { return Ok(Vec::new()) };
        Ok(self.context.store.list_limit_keys(id, after, page_size as i32).await?)
    }

    /// Returns the statistics of a task type, oldest period first. Periods without jobs are left out.
    pub async fn stats_of_type(&self, name: &TaskTypeName, range: StatsRange) -> Result<Vec<StatsRow>, Error> {
        let Some(id) = self.context.registry.find(name).await? else { return Ok(Vec::new()) };
        Ok(self.context.store.statistics_of_type(id, range).await?)
    }

    /// Returns the statistics of the busiest task types, in total over the range.
    pub async fn stats_by_type(&self, range: StatsRange, at_most: usize) -> Result<Vec<StatsRow>, Error> {
        Ok(self.context.store.statistics_by_type(range, at_most as i32).await?)
    }

    /// Returns the statistics of all task types together, without run times, oldest period first. Periods without events are left
    /// out.
    pub async fn stats_of_all(&self, period: StatsPeriod, since: SystemTime) -> Result<Vec<StatsRow>, Error> {
        Ok(self.context.store.statistics_of_all(period, since).await?)
    }

    /// Returns the time until which the statistics are complete. `None` before the first count.
    pub async fn stats_until(&self) -> Result<Option<SystemTime>, Error> {
        Ok(statistics::complete_until(&self.context).await?)
    }

    /// Replaces a type's settings. Returns false, and changes nothing, if `expected` is set and the type has other settings now.
    pub async fn update_task_type(
        &self,
        name: &TaskTypeName,
        settings: &TypeSettings,
        expected: Option<&TypeSettings>,
        by: &Actor,
    ) -> Result<bool, Error> {
        let fallback = match &settings.fallback {
            Some(fallback) => {
                let fallback = std::slice::from_ref(fallback);
                self.context.registry.resolve(fallback, by.name()).await?.first().copied()
            }
            None => None,
        };
        let updated = self.context.store.update_task_type(name.as_str(), settings, (fallback, expected), by).await?;
        let Some(version) = updated else { return Ok(false) };
        self.context.wake.limit_in(Duration::ZERO);
        self.context.settings_changed(version).await;
        Ok(true)
    }
}
