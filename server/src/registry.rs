//! A cache of the names and settings of task types, and of the settings of the cluster: the hot path uses ids of types.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use crate::{
    config::{self, Config},
    error::Error,
    job::{
        Closed, ClusterSettings, HistoryMode, JobOptions, Limits, Outcome, RetryPolicy, TaskTypeName, TypeId,
        TypeSettings,
    },
    store::{ShortHistories, Store, StoreError},
};

mod awaited;

pub(crate) use awaited::Awaited;

/// The task types that this broker knows, and the settings of the cluster.
pub struct Registry {
    store: Store,
    /// How long calls wait for types that other transactions create.
    patience: Duration,
    default_attempts: i16,
    default_retry: RetryPolicy,
    limits: Limits,
    names: RwLock<Names>,
    settings: ArcSwap<AllSettings>,
    cluster: ArcSwap<ClusterSettings>,
    closed: ArcSwapOption<Closed>,
    /// Types that move from here or to here, and are not claimed meanwhile.
    resting: ArcSwap<HashSet<TypeId>>,
    /// Jobs have moved from here: old ids may have new ones.
    has_moved: AtomicBool,
    /// Types whose ranks may not follow a new priority step yet.
    step_changed: Mutex<HashSet<TypeId>>,
    version: AtomicI64,
    /// Counts reads of all settings, as they begin.
    turns: AtomicU64,
    /// The read that `settings` comes from.
    newest: Mutex<u64>,
    /// New types that other transactions create, with the turn of the call that waits for it.
    locked: Mutex<HashMap<TaskTypeName, Arc<tokio::sync::Mutex<()>>>>,
    /// Calls that may wait for them.
    waiting: Semaphore,
    awaited: Arc<awaited::AwaitedTypes>,
    /// Held by the call that creates types: each may exceed the limit of types by what it creates.
    creating: tokio::sync::Mutex<()>,
}

/// The most calls that wait for task types that other transactions create.
const MOST_WAITING: usize = 1_000;

/// Settings by type; types without settings are left out.
pub(crate) type AllSettings = HashMap<TypeId, TypeSettings>;

/// How long ids are remembered. A type that is unused for days is deleted, so an id must not be used for longer than that
/// without asking for it.
const REMEMBERED: Duration = Duration::from_hours(1);

struct Names {
    ids: HashMap<TaskTypeName, TypeId>,
    /// Also of types that were deleted.
    by_id: HashMap<TypeId, TaskTypeName>,
    /// When `ids` was empty.
    since: Instant,
}

impl Default for Names {
    fn default() -> Self {
        Self { ids: HashMap::new(), by_id: HashMap::new(), since: Instant::now() }
    }
}

impl Registry {
    /// An empty cache.
    pub fn new(store: Store, config: &Config) -> Self {
        Self {
            store,
            patience: config.database_timeout,
            default_attempts: config.max_attempts,
            default_retry: config.retry.clone(),
            limits: config.limits.clone(),
            names: RwLock::default(),
            settings: ArcSwap::default(),
            cluster: ArcSwap::default(),
            closed: ArcSwapOption::default(),
            resting: ArcSwap::default(),
            has_moved: AtomicBool::default(),
            step_changed: Mutex::default(),
            version: AtomicI64::new(i64::MIN),
            turns: AtomicU64::default(),
            newest: Mutex::default(),
            locked: Mutex::default(),
            waiting: Semaphore::new(MOST_WAITING),
            awaited: Arc::default(),
            creating: tokio::sync::Mutex::default(),
        }
    }

    /// The ids of these types, which are created if they are new, for this principal (empty: nobody in particular). Waits for
    /// other transactions that create them.
    pub async fn resolve(&self, names: &[TaskTypeName], by: &str) -> Result<Vec<TypeId>, StoreError> {
        let until = Instant::now() + self.patience;
        loop {
            match self.resolve_now(names, by).await {
                Err(StoreError::Locked(_)) if Instant::now() < until => {}
                result => return result,
            }
            let Some(locked) = self.missing(names).pop() else { continue };
            self.create_locked(&locked, by).await?;
        }
    }

    /// The same; another transaction that creates one of them is an error.
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
        ids_of(names, &ids).ok_or_else(|| StoreError::Refused("a task type was deleted while it was created".into()))
    }

    /// Creates the type that an outcome of this principal names, so that it counts for the principal. If that is not known
    /// yet, it is created with the outcome.
    pub(crate) async fn create_stage(&self, outcome: &Outcome, by: &str) -> Result<(), Error> {
        let Some(stage) = outcome.next_stage() else { return Ok(()) };
        if by.is_empty() {
            return Ok(());
        }
        match self.resolve_now(std::slice::from_ref(stage), by).await {
            Err(error @ StoreError::TooMany(_)) => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Those of these names that are not known here, sorted.
    fn missing(&self, names: &[TaskTypeName]) -> Vec<TaskTypeName> {
        missing_of(names, &self.names.read().ids)
    }

    /// Waits for another transaction that creates this type. For each name one call waits in Postgres; the others wait
    /// here for that one.
    async fn create_locked(&self, name: &TaskTypeName, by: &str) -> Result<(), StoreError> {
        let Ok(_waiting) = self.waiting.try_acquire() else {
            let problem = format!("{MOST_WAITING} calls wait for task types that other transactions create");
            return Err(StoreError::Locked(problem.into()));
        };
        let turn = self.locked.lock().entry(name.clone()).or_default().clone();
        let Ok(_turn) = turn.try_lock() else {
            drop(turn.lock().await);
            // If it is still not there, whoever asks for it tries again.
            return self.load(std::slice::from_ref(name)).await.map(drop);
        };
        let created = self.store.create_locked_task_types(&[name.as_str()], by).await;
        self.locked.lock().remove(name);
        created.map_err(|error| match error {
            StoreError::Locked(holders) => StoreError::Locked(holders.of(&format!("the new task type {name}"))),
            error => error,
        })
    }

    /// The id of a type that exists.
    pub async fn find(&self, name: &TaskTypeName) -> Result<Option<TypeId>, StoreError> {
        let names = std::slice::from_ref(name);
        if let Some(ids) = self.cached(names) {
            return Ok(ids.first().copied());
        }
        Ok(self.load(names).await?.get(name).copied())
    }

    /// The ids of those of these types that exist.
    pub(crate) async fn find_all(&self, names: &[TaskTypeName]) -> Result<HashMap<TaskTypeName, TypeId>, StoreError> {
        match self.cached(names) {
            Some(ids) => Ok(names.iter().cloned().zip(ids).collect()),
            None => self.load(names).await,
        }
    }

    /// Says when one of these types has come into being, whoever has made it.
    pub(crate) fn await_types(&self, names: Vec<TaskTypeName>) -> Awaited {
        self.awaited.add(names)
    }

    /// The name of a type that was resolved here.
    pub fn name(&self, id: TypeId) -> Option<TaskTypeName> {
        self.names.read().by_id.get(&id).cloned()
    }

    /// All settings, for code that handles many jobs.
    pub(crate) fn settings(&self) -> Guard<Arc<AllSettings>> {
        self.settings.load()
    }

    /// The settings of the cluster.
    pub(crate) fn cluster(&self) -> Arc<ClusterSettings> {
        self.cluster.load_full()
    }

    /// That the store is closed to new jobs, as this broker knows.
    pub(crate) fn closed(&self) -> Option<Arc<Closed>> {
        self.closed.load_full()
    }

    /// The attempts of a job, if neither it nor its type has a number.
    pub(crate) fn default_attempts(&self) -> i16 {
        self.default_attempts
    }

    /// The types that are not claimed: those that are paused, and those that move.
    pub(crate) fn paused(&self) -> HashSet<TypeId> {
        let settings = self.settings.load();
        let paused = settings.iter().filter(|(_, s)| s.paused).map(|(id, _)| *id);
        paused.chain(self.resting.load().iter().copied()).collect()
    }

    /// Whether jobs have moved from here to another store.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// The version of the settings that this broker goes by.
    pub(crate) fn version(&self) -> i64 {
        self.version.load(Ordering::Acquire)
    }

    /// Types whose ranks may not follow a new priority step yet.
    pub(crate) fn step_changed(&self) -> Vec<TypeId> {
        self.step_changed.lock().iter().copied().collect()
    }

    /// The ranks of this type follow its step now, unless it was changed again meanwhile.
    pub(crate) fn step_followed(&self, id: TypeId) {
        self.step_changed.lock().remove(&id);
    }

    /// The retry policy of a job: its own, then its type's, then the broker's.
    pub fn retry_policy(&self, id: TypeId, options: Option<&JobOptions>) -> RetryPolicy {
        let of_type = self.settings.load().get(&id).map(|s| s.retry.clone()).unwrap_or_default();
        let policy = self.default_retry.clone().with(&of_type);
        match options {
            Some(options) => policy.with(&options.retry_policy),
            None => policy,
        }
    }

    /// Types whose history does not keep every succeeded job.
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

    /// The most days that a type keeps its history.
    pub(crate) fn longest_history(&self) -> i64 {
        self.settings.load().values().filter_map(|s| s.history_days).map(i64::from).max().unwrap_or(0)
    }

    /// Whether claims of a type are limited.
    pub fn has_limits(&self, id: TypeId) -> bool {
        self.settings.load().get(&id).is_some_and(|s| s.limits.bind_claims())
    }

    /// Whether jobs of a type may wait for the end of others.
    pub fn has_waiting(&self, id: TypeId) -> bool {
        self.settings.load().get(&id).is_some_and(|s| s.limits.bind_ends())
    }

    /// The types whose claims are limited.
    pub fn limited_types(&self) -> HashSet<TypeId> {
        self.settings.load().iter().filter(|(_, s)| s.limits.bind_claims()).map(|(id, _)| *id).collect()
    }

    /// Types may have been deleted: ids are asked for again. This happens at any time, also between two steps of a call.
    pub fn forget(&self) {
        let mut known = self.names.write();
        known.ids.clear();
        known.since = Instant::now();
    }

    /// Reads the settings again if they changed; returns whether they did.
    pub async fn refresh(&self, version: i64) -> Result<bool, StoreError> {
        let awaited = self.awaited.names();
        if !awaited.is_empty() {
            self.load(&awaited).await?;
        }
        if self.version.load(Ordering::Acquire) == version {
            return Ok(false);
        }
        let turn = self.turns.fetch_add(1, Ordering::AcqRel);
        let rows = self.store.all_settings().await?;
        let (cluster, closed) = self.store.cluster_state().await?;
        let (resting, has_moved) = self.store.resting_types().await?;
        let mut newest = self.newest.lock();
        if turn < *newest {
            // A later read was faster: these rows may be older.
            return Ok(false);
        }
        *newest = turn;
        let changed = rows.iter().filter(|row| row.step_changed).map(|row| row.id);
        self.step_changed.lock().extend(changed);
        self.take_over(cluster);
        self.closed.store(closed.map(Arc::new));
        self.resting.store(Arc::new(resting.into_iter().collect()));
        self.has_moved.store(has_moved, Ordering::Relaxed);
        self.forget();
        self.settings.store(Arc::new(rows.into_iter().map(|r| (r.id, r.settings)).collect()));
        self.version.store(version, Ordering::Release);
        Ok(true)
    }

    /// Goes by these settings of the cluster; warns if this broker is too small for them.
    fn take_over(&self, cluster: ClusterSettings) {
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
        if known.since.elapsed() > REMEMBERED {
            drop(known);
            self.forget();
            return None;
        }
        ids_of(names, &known.ids)
    }

    /// Reads the ids of those of these types that exist. They are in the cache then, but it may be emptied at any time.
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

/// The ids of all of these names, if they are all there.
fn ids_of(names: &[TaskTypeName], ids: &HashMap<TaskTypeName, TypeId>) -> Option<Vec<TypeId>> {
    names.iter().map(|name| ids.get(name).copied()).collect()
}

/// Those of these names that are not there, sorted.
fn missing_of(names: &[TaskTypeName], ids: &HashMap<TaskTypeName, TypeId>) -> Vec<TaskTypeName> {
    let mut missing: Vec<TaskTypeName> = names.iter().filter(|name| !ids.contains_key(*name)).cloned().collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}
