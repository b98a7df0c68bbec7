//! A cache of task type names and settings, and of the cluster settings. With the cache, enqueues and claims need no
//! query for type ids and settings.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use howdah_core::{
    config::{self, Config},
    error::Error,
    job::{
        Closed, ClusterSettings, HistoryMode, JobOptions, Limits, Outcome, RetryPolicy, TaskTypeName, TypeId,
        TypeSettings,
    },
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore};

use crate::store::{DatabaseInstance, ShortHistories, Store, StoreError};

/// The broker's cache of task types and cluster settings.
pub struct Registry {
    store: Store,
    /// Maximum time that a call waits for a task type that another transaction is creating.
    lock_timeout: Duration,
    default_attempts: i16,
    default_retry: RetryPolicy,
    limits: Limits,
    names: RwLock<Names>,
    settings: ArcSwap<AllSettings>,
    cluster: ArcSwap<ClusterSettings>,
    closed: ArcSwapOption<Closed>,
    /// Task types that are moving from or to this store. Their jobs are not claimed during the move.
    moving: ArcSwap<HashSet<TypeId>>,
    /// Whether jobs have ever moved from this store to another. If so, an old job id may have a new id.
    has_moved: AtomicBool,
    /// Task types with jobs whose rank may still be based on an old `priority_step`.
    step_changed: Mutex<HashSet<TypeId>>,
    version: AtomicI64,
    /// The database whose values are cached. `None` before the first sweep.
    database: Mutex<Option<DatabaseInstance>>,
    /// Counter of reads of the settings. The counter is incremented at the start of each read.
    reads: AtomicU64,
    /// Number of the read whose result is in `settings`. Results of reads that started earlier are ignored.
    newest: Mutex<u64>,
    /// Mutexes of new types that other transactions are creating. One call per type holds the mutex and waits in
    /// Postgres; the others wait for the mutex.
    created_elsewhere: Mutex<HashMap<TaskTypeName, Arc<tokio::sync::Mutex<()>>>>,
    /// Semaphore that limits the calls which wait for task types that other transactions are creating.
    waiting: Semaphore,
    awaited: Arc<AwaitedTypes>,
    /// Serializes the creation of types. Otherwise concurrent creations could together exceed the maximum number of
    /// types.
    creating: tokio::sync::Mutex<()>,
}

/// Maximum number of calls that wait for task types that other transactions are creating.
const MOST_WAITING: usize = 1_000;

/// Settings by type. Types without settings are absent.
pub(crate) type AllSettings = HashMap<TypeId, TypeSettings>;

/// Time for which type ids are cached. Types that are unused for days are deleted, so a cached id must be read again
/// before that.
const ID_CACHE_TTL: Duration = Duration::from_hours(1);

struct Names {
    ids: HashMap<TaskTypeName, TypeId>,
    /// Names of task types by type id, including deleted types.
    by_id: HashMap<TypeId, TaskTypeName>,
    /// Time at which `ids` was last cleared.
    since: Instant,
}

impl Default for Names {
    fn default() -> Self {
        Self { ids: HashMap::new(), by_id: HashMap::new(), since: Instant::now() }
    }
}

impl Registry {
    pub fn new(store: Store, config: &Config) -> Self {
        Self {
            store,
            lock_timeout: config.database_timeout,
            default_attempts: config.max_attempts,
            default_retry: config.retry.clone(),
            limits: config.limits.clone(),
            names: RwLock::default(),
            settings: ArcSwap::default(),
            cluster: ArcSwap::default(),
            closed: ArcSwapOption::default(),
            moving: ArcSwap::default(),
            has_moved: AtomicBool::default(),
            step_changed: Mutex::default(),
            version: AtomicI64::new(i64::MIN),
            database: Mutex::default(),
            reads: AtomicU64::default(),
            newest: Mutex::default(),
            created_elsewhere: Mutex::default(),
            waiting: Semaphore::new(MOST_WAITING),
            awaited: Arc::default(),
            creating: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the ids of the task types, and creates missing types on behalf of the principal `by` (empty when
    /// authentication is off). Waits for other transactions that are creating the types.
    pub async fn resolve(&self, names: &[TaskTypeName], by: &str) -> Result<Vec<TypeId>, StoreError> {
        let until = Instant::now() + self.lock_timeout;
        loop {
            match self.resolve_now(names, by).await {
                Err(StoreError::Locked(_)) if Instant::now() < until => {}
                result => return result,
            }
            let Some(missing) = self.missing(names).pop() else { continue };
            self.create_locked(&missing, by).await?;
        }
    }

    /// Returns the ids of the task types as [`Self::resolve`] does, but fails with `Locked` if another transaction is
    /// creating one of them.
    pub async fn resolve_now(&self, names: &[TaskTypeName], by: &str) -> Result<Vec<TypeId>, StoreError> {
        if let Some(ids) = self.cached(names) {
            return Ok(ids);
        }
        let mut ids = self.load(names).await?;
        let missing = missing_of(names, &ids);
        if !missing.is_empty() {
            let missing: Vec<&str> = missing.iter().map(TaskTypeName::as_str).collect();
            let _creating = self.creating.lock().await;
            self.store.create_task_types(&missing, by).await?;
            ids = self.load(names).await?;
        }
        ids_of(names, &ids).ok_or_else(|| {
            StoreError::Refused("a task type of this call was deleted right after its creation; repeat the call".into())
        })
    }

    /// Creates the task type of the job's next stage, which an outcome names, so that the type counts towards the
    /// principal's quota. If this fails, the type is created when the outcome is written.
    pub async fn create_stage(&self, outcome: &Outcome, by: &str) -> Result<(), Error> {
        let Some(stage) = outcome.next_stage() else { return Ok(()) };
        if by.is_empty() {
            return Ok(());
        }
        match self.resolve_now(std::slice::from_ref(stage), by).await {
            Err(error @ StoreError::TooMany(_)) => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Returns the names that are not in the cache, sorted and without duplicates.
    fn missing(&self, names: &[TaskTypeName]) -> Vec<TaskTypeName> {
        missing_of(names, &self.names.read().ids)
    }

    /// Waits until another transaction has created this type. One call per name waits in Postgres; other calls wait for
    /// that call.
    async fn create_locked(&self, name: &TaskTypeName, by: &str) -> Result<(), StoreError> {
        let Ok(_waiting) = self.waiting.try_acquire() else {
            let problem =
                format!("{MOST_WAITING} calls wait for task types that other transactions create; try again later");
            return Err(StoreError::Locked(problem.into()));
        };
        let creation = self.created_elsewhere.lock().entry(name.clone()).or_default().clone();
        let Ok(_creating) = creation.try_lock() else {
            drop(creation.lock().await);
            // If the type still does not exist, the caller retries.
            return self.load(std::slice::from_ref(name)).await.map(drop);
        };
        let created = self.store.create_locked_task_types(&[name.as_str()], by).await;
        self.created_elsewhere.lock().remove(name);
        created.map_err(|error| match error {
            StoreError::Locked(holders) => {
                StoreError::Locked(holders.with_subject(&format!("the new task type {name}")))
            }
            error => error,
        })
    }

    /// Returns the id of a type, if the type exists.
    pub async fn find(&self, name: &TaskTypeName) -> Result<Option<TypeId>, StoreError> {
        let names = std::slice::from_ref(name);
        if let Some(ids) = self.cached(names) {
            return Ok(ids.first().copied());
        }
        Ok(self.load(names).await?.get(name).copied())
    }

    /// Returns the ids of the types that exist.
    pub async fn find_all(&self, names: &[TaskTypeName]) -> Result<HashMap<TaskTypeName, TypeId>, StoreError> {
        match self.cached(names) {
            Some(ids) => Ok(names.iter().cloned().zip(ids).collect()),
            None => self.load(names).await,
        }
    }

    /// Returns a handle that reports when one of these types exists, whichever broker creates it.
    pub fn await_types(&self, names: Vec<TaskTypeName>) -> Awaited {
        self.awaited.add(names)
    }

    /// Returns the cached name of a type.
    pub fn name(&self, id: TypeId) -> Option<TaskTypeName> {
        self.names.read().by_id.get(&id).cloned()
    }

    /// Returns the settings of all task types, for code that handles many jobs.
    pub(crate) fn settings(&self) -> Guard<Arc<AllSettings>> {
        self.settings.load()
    }

    pub fn cluster(&self) -> Arc<ClusterSettings> {
        self.cluster.load_full()
    }

    /// Returns who closed the store to new jobs and when, from the cache. `None` if the store is open.
    pub(crate) fn closed(&self) -> Option<Arc<Closed>> {
        self.closed.load_full()
    }

    /// Returns the `max_attempts` of jobs if neither the job nor its task type sets a value.
    pub(crate) fn default_attempts(&self) -> i16 {
        self.default_attempts
    }

    /// Returns the types whose jobs are not claimed: paused types, and types that are moving.
    pub(crate) fn paused(&self) -> HashSet<TypeId> {
        let settings = self.settings.load();
        let paused = settings.iter().filter(|(_, s)| s.paused).map(|(id, _)| *id);
        paused.chain(self.moving.load().iter().copied()).collect()
    }

    /// Whether jobs have ever moved from this store to another.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// Version of the settings that this broker applies.
    pub(crate) fn version(&self) -> i64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the task types with jobs whose rank may still be based on an old `priority_step`.
    pub(crate) fn step_changed(&self) -> Vec<TypeId> {
        self.step_changed.lock().iter().copied().collect()
    }

    /// Records that all ranks of this type are based on the current `priority_step`.
    pub(crate) fn step_followed(&self, id: TypeId) {
        self.step_changed.lock().remove(&id);
    }

    /// Returns the retry policy of a job: each value comes from the job, else from its type, else from the broker.
    pub fn retry_policy(&self, id: TypeId, options: Option<&JobOptions>) -> RetryPolicy {
        let of_type = self.settings.load().get(&id).map(|s| s.retry.clone()).unwrap_or_default();
        let policy = self.default_retry.clone().with(&of_type);
        match options {
            Some(options) => policy.with(&options.retry_policy),
            None => policy,
        }
    }

    /// Returns the types whose history does not keep every succeeded job.
    pub fn short_histories(&self) -> ShortHistories {
        let settings = self.settings.load();
        let of = |modes: &[HistoryMode]| {
            let is_one = |s: &TypeSettings| s.history.is_some_and(|mode| modes.contains(&mode));
            settings.iter().filter(|(_, s)| is_one(s)).map(|(id, _)| *id).collect()
        };
        ShortHistories {
            none: of(&[HistoryMode::None]),
            failures: of(&[HistoryMode::Failures, HistoryMode::WithoutEmpty]),
            results: of(&[HistoryMode::WithoutEmpty]),
        }
    }

    /// Returns the longest retention of history that a task type sets, in days.
    pub(crate) fn longest_history(&self) -> i64 {
        self.settings.load().values().filter_map(|s| s.history_days).map(i64::from).max().unwrap_or(0)
    }

    /// Whether the type has limits that restrict claims.
    pub fn has_limits(&self, id: TypeId) -> bool {
        self.settings.load().get(&id).is_some_and(|s| s.limits.bind_claims())
    }

    /// Whether the type has limits by which jobs wait until other jobs end.
    pub fn has_waiting(&self, id: TypeId) -> bool {
        self.settings.load().get(&id).is_some_and(|s| s.limits.bind_ends())
    }

    /// Returns the types among these that have a brake.
    pub(crate) fn braking(&self, types: impl Iterator<Item = TypeId>) -> Vec<TypeId> {
        let settings = self.settings.load();
        types.filter(|id| settings.get(id).is_some_and(|s| s.limits.brake_failures.is_some())).collect()
    }

    /// Returns the types that have limits which restrict claims.
    pub fn limited_types(&self) -> HashSet<TypeId> {
        self.settings.load().iter().filter(|(_, s)| s.limits.bind_claims()).map(|(id, _)| *id).collect()
    }

    /// Clears the cached type ids, because types may have been deleted. May happen at any time, also between two steps
    /// of a call.
    pub fn clear_ids(&self) {
        let mut known = self.names.write();
        known.ids.clear();
        known.since = Instant::now();
    }

    /// Forgets the cached type ids and settings if the database was replaced: by a promoted standby that lacks the last transactions, or
    /// by a restored schema. Task types that it lacks are created again with their ids, because calls may have stored
    /// jobs with these ids in the new database.
    pub(crate) async fn follow(&self, database: DatabaseInstance) -> Result<(), StoreError> {
        let before = *self.database.lock();
        if before.is_some_and(|before| before != database) {
            let known: Vec<(TaskTypeName, TypeId)> =
                self.names.read().ids.iter().map(|(name, id)| (name.clone(), *id)).collect();
            let (names, ids): (Vec<&str>, Vec<TypeId>) = known.iter().map(|(name, id)| (name.as_str(), *id)).unzip();
            let restored = self.store.restore_task_types(&ids, &names).await?;
            if !restored.is_empty() {
                self.store.sync_state_with_rows().await?;
                let types = restored.join(", ");
                tracing::warn!(%types, "the database was replaced and lacked these task types; created them again");
            }
            // The names of types by id stay: connected workers get jobs of these types before the ids are read again.
            self.clear_ids();
            self.version.store(i64::MIN, Ordering::Release);
        }
        *self.database.lock() = Some(database);
        Ok(())
    }

    /// Reads the settings again if their version changed. Returns whether the cache was updated.
    pub async fn refresh(&self, version: i64) -> Result<bool, StoreError> {
        let awaited = self.awaited.names();
        if !awaited.is_empty() {
            self.load(&awaited).await?;
        }
        if self.version.load(Ordering::Acquire) == version {
            return Ok(false);
        }
        let read_number = self.reads.fetch_add(1, Ordering::AcqRel);
        let rows = self.store.all_settings().await?;
        let (cluster, closed) = self.store.cluster_state().await?;
        let (moving, has_moved) = self.store.unclaimed_types().await?;
        let mut newest = self.newest.lock();
        if read_number < *newest {
            // Another read started later and has finished first, so the rows of this read may be older.
            return Ok(false);
        }
        *newest = read_number;
        let changed = rows.iter().filter(|row| row.step_changed).map(|row| row.id);
        self.step_changed.lock().extend(changed);
        self.apply_cluster_settings(cluster);
        self.closed.store(closed.map(Arc::new));
        self.moving.store(Arc::new(moving.into_iter().collect()));
        self.has_moved.store(has_moved, Ordering::Relaxed);
        self.clear_ids();
        self.settings.store(Arc::new(rows.into_iter().map(|r| (r.id, r.settings)).collect()));
        self.version.store(version, Ordering::Release);
        Ok(true)
    }

    /// Applies the cluster settings. Logs a warning if the limits of this broker are too small for them.
    fn apply_cluster_settings(&self, cluster: ClusterSettings) {
        let is_first = self.version.load(Ordering::Acquire) == i64::MIN;
        if is_first || **self.cluster.load() != cluster {
            for problem in config::too_small_for(&self.limits, &cluster) {
                tracing::warn!("{problem}");
            }
        }
        self.cluster.store(Arc::new(cluster));
    }

    fn cached(&self, names: &[TaskTypeName]) -> Option<Vec<TypeId>> {
        let known = self.names.read();
        if known.since.elapsed() > ID_CACHE_TTL {
            drop(known);
            self.clear_ids();
            return None;
        }
        ids_of(names, &known.ids)
    }

    /// Reads the ids of the types that exist, and caches them. Callers must use the result and not the cache, which
    /// another task may clear at any time.
    async fn load(&self, names: &[TaskTypeName]) -> Result<HashMap<TaskTypeName, TypeId>, StoreError> {
        let texts: Vec<&str> = names.iter().map(TaskTypeName::as_str).collect();
        let rows = self.store.task_types(&texts).await?;
        let parsed = rows.into_iter().filter_map(|(id, name)| Some((TaskTypeName::parse(&name).ok()?, id)));
        let ids: HashMap<TaskTypeName, TypeId> = parsed.collect();
        let mut known = self.names.write();
        for (name, id) in &ids {
            known.by_id.insert(*id, name.clone());
            known.ids.insert(name.clone(), *id);
        }
        drop(known);
        self.awaited.exist(ids.keys());
        Ok(ids)
    }
}

/// Returns the ids of all names, or `None` if one is missing.
fn ids_of(names: &[TaskTypeName], ids: &HashMap<TaskTypeName, TypeId>) -> Option<Vec<TypeId>> {
    names.iter().map(|name| ids.get(name).copied()).collect()
}

/// Returns the names that have no id, sorted and without duplicates.
fn missing_of(names: &[TaskTypeName], ids: &HashMap<TaskTypeName, TypeId>) -> Vec<TaskTypeName> {
    let mut missing: Vec<TaskTypeName> = names.iter().filter(|name| !ids.contains_key(*name)).cloned().collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// Awaited task types, with the streams to notify.
#[derive(Default)]
pub(super) struct AwaitedTypes {
    waiting: Mutex<HashMap<TaskTypeName, Vec<Arc<Notify>>>>,
}

/// Waits for task types to be created. Dropping the value unregisters it.
pub struct Awaited {
    types: Arc<AwaitedTypes>,
    names: Vec<TaskTypeName>,
    notify: Arc<Notify>,
}

impl AwaitedTypes {
    pub(super) fn add(self: &Arc<Self>, names: Vec<TaskTypeName>) -> Awaited {
        let notify = Arc::new(Notify::new());
        let mut waiting = self.waiting.lock();
        for name in &names {
            waiting.entry(name.clone()).or_default().push(notify.clone());
        }
        Awaited { types: self.clone(), names, notify }
    }

    /// Returns the names of the awaited types.
    pub(super) fn names(&self) -> Vec<TaskTypeName> {
        let waiting = self.waiting.lock();
        if waiting.is_empty() { Vec::new() } else { waiting.keys().cloned().collect() }
    }

    /// Notifies the streams that wait for these types, which exist now.
    pub(super) fn exist<'a>(&self, names: impl Iterator<Item = &'a TaskTypeName>) {
        let waiting = self.waiting.lock();
        if !waiting.is_empty() {
            names.filter_map(|name| waiting.get(name)).flatten().for_each(|notify| notify.notify_one());
        }
    }
}

impl Awaited {
    /// Completes when one of the types exists. A notification that arrives between two calls is kept.
    pub async fn appeared(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut waiting = self.types.waiting.lock();
        for name in &self.names {
            if let Some(notifies) = waiting.get_mut(name) {
                notifies.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
                if notifies.is_empty() {
                    waiting.remove(name);
                }
            }
        }
    }
}
