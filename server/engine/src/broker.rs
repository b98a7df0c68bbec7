//! A broker: starts and stops its components in order.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime},
};

use howdah_core::{
    config::{Config, WakeMode},
    job::{ClusterSettings, TaskTypeName, schedule::CheckTemplate},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    task::AbortHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    critical::CriticalTasks,
    dispatch::{Dispatch, Unsent, UnsentMemory},
    intake::Intake,
    maintain::{self, Context, RefreshTokens, Tasks},
    memory::Memory,
    metrics::Metrics,
    operate::{self, Operator},
    progress::Progress,
    registry::Registry,
    session::{SessionContext, Sessions, watch_unsent},
    settle::{self, Release, Settle},
    store::{ReplicaState, Store, StoreError, retry_while_locked},
    traces::{Collector, Traces},
    waiters::Waiters,
    wake::Wake,
};

/// Maximum time to export the last spans when the broker stops.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// One broker, which serves one store. All jobs and leases are in the database, so a crash of the broker loses none.
pub struct Broker {
    /// Accepts new jobs.
    pub intake: Intake,
    /// State that workers' streams and calls share.
    pub workers: Arc<SessionContext>,
    /// Executes the calls of operators.
    pub operator: Operator,
    /// Memory budget for answers that clients have not read yet.
    pub answers: Arc<Memory>,
    /// Key that signs page tokens. A page token is valid only for the request that it was issued for.
    pub page_token_key: Vec<u8>,
    /// Identity of the database. A copy of the database, such as a restored backup, has the same identity until it gets
    /// a new one.
    pub database_id: String,
    context: Arc<Context>,
    background: Mutex<Option<Tasks>>,
    critical: Mutex<Option<CriticalTasks>>,
    /// Tasks for jobs that could not be sent.
    unsent_tasks: [AbortHandle; 2],
    panicked: CancellationToken,
}

/// Broker as the gRPC and HTTP services share it.
pub type SharedBroker = Arc<Broker>;

/// Starts the tasks for jobs that could not be sent. They stop last, because the last batches of a stopping broker still need them.
fn spawn_unsent(
    (release, unsent_jobs): (Release, mpsc::UnboundedReceiver<Unsent>),
    (sessions, dispatch): (Arc<Sessions>, Arc<Dispatch>),
) -> [AbortHandle; 2] {
    let tasks = [tokio::spawn(release.release_unsent(unsent_jobs)), tokio::spawn(watch_unsent(sessions, dispatch))];
    tasks.map(|task| task.abort_handle())
}

/// State that the brokers of one process share. Each broker serves one store.
#[derive(Clone)]
pub struct Shared {
    /// Memory budget for answers that clients have not read yet.
    pub(crate) answers: Arc<Memory>,
    /// Memory budget for jobs that wait to be sent to workers.
    unsent: Arc<UnsentMemory>,
    /// Cancelled when a critical task has panicked.
    pub panicked: CancellationToken,
}

impl Shared {
    /// Creates the state that the brokers of this process share.
    pub fn new(config: &Config) -> Self {
        let (answers, unsent) =
            (Memory::new(config.limits.answer_bytes), UnsentMemory::new(config.limits.answer_bytes));
        Self { answers, unsent, panicked: CancellationToken::new() }
    }
}

impl Broker {
    /// Registers the broker in the database and starts all of its tasks. The schema must be up to date.
    /// `refresh_tokens` is set for the primary store, which holds the tokens of callers. With a `collector`, the broker
    /// exports spans to it.
    pub async fn start(
        config: Config,
        store: Store,
        (shared, refresh_tokens): (Shared, Option<RefreshTokens>),
        metrics: Arc<Metrics>,
        collector: Option<Collector>,
        check_template: CheckTemplate,
    ) -> Result<SharedBroker, StoreError> {
        let config = Arc::new(config);
        let Shared { answers, unsent: unsent_memory, panicked } = shared;
        let page_token_key = retry_while_locked("the key of page tokens", || store.page_token_key()).await?;
        let database_id = retry_while_locked("the identity of the database", || store.database_id()).await?;
        let clock_ahead = retry_while_locked("the test clock", || store.clock_ahead()).await?;
        // Stores the archive URL before this broker can drop a day partition. While the database contains the URL, no
        // broker drops a day partition of history that is not archived.
        if let Some(url) = &config.archive_url {
            retry_while_locked("the URL of the archive", || store.set_archive_target(url, &config.name)).await?;
        }
        let broker_id =
            retry_while_locked("the row of this broker", || store.register_broker(&config.name, config.broker_lease))
                .await?;
        let (unsent, unsent_jobs) = mpsc::unbounded_channel();
        let wake = Wake::new(config.wake == WakeMode::Listen);
        let registry = Arc::new(Registry::new(store.clone(), &config));
        let traces = Traces::start(collector, config.otlp.sample_ratio, &database_id, &registry, &metrics.traces);
        let dispatch =
            Arc::new(Dispatch::new(broker_id, wake.clone(), (unsent, unsent_memory), traces.clone(), metrics.clone()));
        let settings_version =
            retry_while_locked("the search for due work", || store.sweep(None)).await?.settings_version;
        if let Some(refresh) = &refresh_tokens {
            retry_while_locked("the tokens", || refresh(settings_version)).await?;
        }
        retry_while_locked("the settings", || registry.refresh(settings_version)).await?;
        dispatch.set_limited(registry.limited_types());
        dispatch.pause(registry.paused());

        let mut critical = CriticalTasks::new(panicked.clone());
        let writer = settle::Writer::new(&config, &store, &registry, &dispatch, &wake, &metrics);
        let settle = Settle::start(&mut critical, &config, &writer);
        let release = Release::new(writer);
        let progress = Progress::start(&mut critical, &config, &store);
        let intake = Intake::start(&mut critical, &config, &store, registry.clone(), &wake, &dispatch, metrics.clone());
        critical.spawn("claim", dispatch.clone().run_claims(store.clone()));

        let sessions = Arc::new(Sessions::default());
        let unsent_tasks = spawn_unsent((release.clone(), unsent_jobs), (sessions.clone(), dispatch.clone()));
        let workers = Arc::new(SessionContext {
            config: config.clone(),
            store: store.clone(),
            registry: registry.clone(),
            dispatch: dispatch.clone(),
            settle,
            progress,
            release: release.clone(),
            wake: wake.clone(),
            sessions: sessions.clone(),
            draining: CancellationToken::new(),
        });
        let context = Arc::new(Context {
            config,
            store,
            wake,
            dispatch,
            sessions,
            registry,
            refresh_tokens,
            metrics,
            release,
            check_template,
            scheduled_floor: Mutex::default(),
            clock: Mutex::default(),
            test_clock: clock_ahead.map(maintain::clock::TestClock::new),
            clock_advanced: Notify::new(),
            clock_back: Notify::new(),
            renewal: Mutex::new(maintain::Renewal::new()),
            readopt: AtomicBool::new(false),
            id_change: tokio::sync::Mutex::default(),
            ended_leases: maintain::Hints::default(),
            skipped_schedules: maintain::schedules::SkippedSchedules::default(),
            sweep_now: Notify::new(),
            rescue_now: Notify::new(),
            partitions_now: Notify::new(),
            rerank_now: Notify::new(),
            limits_now: Notify::new(),
            statistics_now: Notify::new(),
            background_mutex: maintain::BackgroundMutex::default(),
            examination: parking_lot::Mutex::default(),
            job_counts: maintain::job_gauges::JobCounts::default(),
            waiters: Waiters::default(),
        });
        let mut background = maintain::start(&context);
        tracing::info!(broker = broker_id, name = context.config.name, "broker started");
        let operator = Operator::new(context.clone());
        background.spawn(operate::bulk::run(operator.clone()));
        let background = Mutex::new(Some(background));
        let critical = Mutex::new(Some(critical));
        Ok(Arc::new(Self {
            intake,
            workers,
            operator,
            answers,
            page_token_key,
            database_id,
            context,
            background,
            critical,
            unsent_tasks,
            panicked,
        }))
    }

    /// Drains the broker: stops claims, releases unsent jobs, and asks workers to reconnect to another broker before
    /// the deadline. Outcomes are accepted until the broker stops.
    pub async fn drain(&self, deadline: Duration) {
        self.workers.draining.cancel();
        let c = &self.context;
        c.dispatch.close();
        c.sessions.drain_all(&c.dispatch);
        if tokio::time::timeout(deadline, c.sessions.all_closed()).await.is_err() {
            tracing::warn!(
                streams = c.sessions.open(),
                "workers did not reconnect elsewhere by the deadline; ending their streams"
            );
            c.sessions.end_all();
        }
    }

    /// Stops the broker: writes the queued batches and unregisters from the database. Must be called after all calls
    /// are answered. Workers may resume their sessions at another broker within the grace time, and keep their leases.
    pub async fn stop(&self, deadline: Duration) {
        let c = &self.context;
        let leaving = async {
            self.intake.close();
            self.workers.settle.close();
            self.workers.progress.close();
            // Waits for the current claim and the current batches. They may still add unsent jobs, which `flush` then
            // releases.
            let critical = self.critical.lock().take();
            if let Some(critical) = critical {
                critical.ended().await;
            }
            c.dispatch.flush().await;
            let background = self.background.lock().take();
            if let Some(background) = background {
                background.stop().await;
            }
            if let Err(error) = c.store.retire_broker(c.dispatch.broker_id(), c.config.session_grace).await {
                tracing::warn!(%error, "could not unregister the broker; other brokers notice when its row expires");
            }
        };
        let begun = Instant::now();
        if tokio::time::timeout(deadline, leaving).await.is_err() {
            tracing::warn!("the broker did not stop within its deadline; other brokers rescue its remaining leases");
        }
        c.dispatch.traces().stop(LAST_SPANS.min(deadline.saturating_sub(begun.elapsed()))).await;
        self.unsent_tasks.iter().for_each(AbortHandle::abort);
    }

    /// Completes when a critical task has panicked, after which the broker cannot continue.
    pub async fn failed(&self) {
        self.panicked.cancelled().await;
    }

    /// Whether a critical task has panicked.
    pub fn has_failed(&self) -> bool {
        self.panicked.is_cancelled()
    }

    /// Returns when the task type was created in the broker's store, or `None` if the type does not exist there.
    pub async fn type_created(&self, name: &TaskTypeName) -> Result<Option<SystemTime>, StoreError> {
        self.context.store.task_type_created(name.as_str()).await
    }

    /// Whether the store's circuit breaker is open. An open circuit breaker refuses calls at once.
    pub fn is_unreachable(&self) -> bool {
        self.context.store.is_unreachable()
    }

    /// Whether the broker is stopping.
    pub fn is_draining(&self) -> bool {
        self.workers.is_draining()
    }

    /// State of the read replica, if one is configured.
    pub fn replica_state(&self) -> Option<ReplicaState> {
        self.context.store.replica_state()
    }

    /// The store that the broker serves.
    pub fn store(&self) -> &Store {
        &self.context.store
    }

    pub fn config(&self) -> &Config {
        &self.context.config
    }

    /// The settings of the cluster, from the broker's cache.
    pub fn cluster(&self) -> Arc<ClusterSettings> {
        self.context.registry.cluster()
    }

    /// Version of the cluster settings that this broker applies.
    pub fn settings_version(&self) -> i64 {
        self.context.registry.version()
    }

    /// Whether the store is closed to new jobs, from the broker's cache.
    pub fn is_closed(&self) -> bool {
        self.context.registry.closed().is_some()
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.context.metrics
    }
}
