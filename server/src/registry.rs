//! Names and settings of task types, cached: the hot path knows types by their keys.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicI64, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::RwLock;

use crate::{
    config::Config,
    job::{HistoryMode, Options, RetryPolicy, TaskTypeName, TypeId, TypeSettings},
    store::{Store, StoreError},
};

/// The task types that this broker has met.
pub struct Registry {
    store: Store,
    default_attempts: i16,
    default_retry: RetryPolicy,
    names: RwLock<Names>,
    settings: ArcSwap<HashMap<TypeId, TypeSettings>>,
    version: AtomicI64,
}

#[derive(Default)]
struct Names {
    ids: HashMap<TaskTypeName, TypeId>,
    names: HashMap<TypeId, TaskTypeName>,
}

impl Registry {
    /// An empty cache.
    pub fn new(store: Store, config: &Config) -> Self {
        Self {
            store,
            default_attempts: config.max_attempts,
            default_retry: config.retry.clone(),
            names: RwLock::default(),
            settings: ArcSwap::default(),
            version: AtomicI64::new(i64::MIN),
        }
    }

    /// The keys of these types, which are made if they are new.
    pub async fn resolve(&self, names: &[TaskTypeName]) -> Result<Vec<TypeId>, StoreError> {
        if let Some(ids) = self.cached(names) {
            return Ok(ids);
        }
        self.load(names).await?;
        let mut missing: Vec<&str> = {
            let known = self.names.read();
            names.iter().filter(|n| !known.ids.contains_key(*n)).map(TaskTypeName::as_str).collect()
        };
        if !missing.is_empty() {
            missing.sort_unstable();
            missing.dedup();
            self.store.create_task_types(&missing).await?;
            self.load(names).await?;
        }
        self.cached(names).ok_or_else(|| StoreError::Refused("a task type vanished while it was made".into()))
    }

    /// The key of a type that exists.
    pub async fn find(&self, name: &TaskTypeName) -> Result<Option<TypeId>, StoreError> {
        let names = std::slice::from_ref(name);
        if let Some(ids) = self.cached(names) {
            return Ok(ids.first().copied());
        }
        self.load(names).await?;
        Ok(self.cached(names).and_then(|ids| ids.first().copied()))
    }

    /// The name of a type that was resolved here.
    pub fn name(&self, id: TypeId) -> Option<TaskTypeName> {
        self.names.read().names.get(&id).cloned()
    }

    /// Deliveries of a job that says nothing.
    pub fn max_attempts(&self, id: TypeId) -> i16 {
        self.settings.load().get(&id).and_then(|s| s.max_attempts).unwrap_or(self.default_attempts)
    }

    /// The retry policy of a job: its own, then its type's, then the broker's.
    pub fn retry_policy(&self, id: TypeId, options: Option<&Options>) -> RetryPolicy {
        let of_type = self.settings.load().get(&id).map(|s| s.retry.clone()).unwrap_or_default();
        let policy = self.default_retry.clone().with(&of_type);
        match options {
            Some(options) => policy.with(&options.retry),
            None => policy,
        }
    }

    /// Whether a large payload of this type is kept apart: worth it where the job is written again, to
    /// history.
    pub fn keeps_history(&self, id: TypeId) -> bool {
        self.settings.load().get(&id).is_none_or(|s| s.history != Some(HistoryMode::None))
    }

    /// Types of which history keeps no succeeded jobs, and only those that failed before.
    pub fn short_histories(&self) -> (Vec<TypeId>, Vec<TypeId>) {
        let settings = self.settings.load();
        let of = |mode| settings.iter().filter(|(_, s)| s.history == Some(mode)).map(|(id, _)| *id).collect();
        (of(HistoryMode::None), of(HistoryMode::Failures))
    }

    /// Reads settings again if they changed.
    pub async fn refresh(&self, version: i64) -> Result<(), StoreError> {
        if self.version.load(Ordering::Acquire) == version {
            return Ok(());
        }
        let rows = self.store.all_settings().await?;
        self.settings.store(std::sync::Arc::new(rows.into_iter().map(|r| (r.id, r.settings)).collect()));
        self.version.store(version, Ordering::Release);
        Ok(())
    }

    fn cached(&self, names: &[TaskTypeName]) -> Option<Vec<TypeId>> {
        let known = self.names.read();
        names.iter().map(|name| known.ids.get(name).copied()).collect()
    }

    async fn load(&self, names: &[TaskTypeName]) -> Result<(), StoreError> {
        let texts: Vec<&str> = names.iter().map(TaskTypeName::as_str).collect();
        let rows = self.store.task_types(&texts).await?;
        let mut known = self.names.write();
        for row in rows {
            if let Ok(name) = TaskTypeName::parse(&row.name) {
                known.names.insert(row.id, name.clone());
                known.ids.insert(name, row.id);
            }
        }
        Ok(())
    }
}
