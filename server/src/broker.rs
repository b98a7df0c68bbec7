//! A broker: its parts, started in order and stopped in order.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    access::Access,
    config::{Config, WakeMode},
    critical::CriticalTasks,
    dispatch::Dispatch,
    intake::Intake,
    job::{ClusterSettings, TaskTypeName, schedule::CheckTemplate},
    maintain::{self, Context, Tasks},
    memory::Memory,
    metrics::Metrics,
    operate::{self, Operator},
    progress::Progress,
    registry::Registry,
    session::{SessionContext, Sessions, watch_unsent},
    settle::{self, Release, Settle},
    store::{ReplicaState, Store, StoreError, unless_locked},
    traces::{Collector, Traces},
    waiters::Waiters,
    wake::Wake,
};

/// How long the last spans may take when the broker stops.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// One broker. All that it keeps can be lost, except the streams of its workers.
pub struct Broker {
    /// Accepts new jobs.
    pub(crate) intake: Intake,
    /// Used by workers' streams and calls.
    pub(crate) workers: Arc<SessionContext>,
    /// Used by operators' calls.
    pub(crate) operator: Operator,
    /// Memory for answers that clients have not read yet.
    pub(crate) answers: Arc<Memory>,
    /// Authenticates callers.
    pub(crate) access: Arc<Access>,
    /// Binds page tokens to what they were given for.
    pub(crate) page_token_key: Vec<u8>,
    /// What tells its database from others.
    pub(crate) database_id: String,
    context: Arc<Context>,
    background: Mutex<Option<Tasks>>,
    critical: Mutex<Option<CriticalTasks>>,
    panicked: CancellationToken,
}

/// Shared by every service.
pub type SharedBroker = Arc<Broker>;

/// What the brokers of one process share: each serves a store.
#[derive(Clone)]
pub struct Shared {
    /// Authenticates callers.
    pub(crate) access: Arc<Access>,
    /// Memory for answers that clients have not read yet.
    pub(crate) answers: Arc<Memory>,
    /// Cancelled when a critical task has panicked.
    pub(crate) panicked: CancellationToken,
}

impl Shared {
    /// For brokers of this configuration.
    pub fn new(config: &Config, access: Access, metrics: &Metrics) -> Self {
        let access = Arc::new(access.counting(metrics.refused_calls.clone()));
        Self { access, answers: Memory::new(config.limits.answer_bytes), panicked: CancellationToken::new() }
    }
}

impl Broker {
    /// Registers the broker in the database, and starts every task. The schema must be up to date. `keeps_tokens`: the
    /// credentials that callers show are in this store. Spans go to the collector.
    pub async fn start(
        config: Config,
        store: Store,
        (shared, keeps_tokens): (Shared, bool),
        metrics: Arc<Metrics>,
        collector: Option<Collector>,
        check_template: CheckTemplate,
    ) -> Result<SharedBroker, StoreError> {
        let config = Arc::new(config);
        let Shared { access, answers, panicked } = shared;
        let page_token_key = unless_locked("the key of page tokens", || store.page_token_key()).await?;
        let database_id = unless_locked("the identity of the database", || store.database_id()).await?;
        // Before the first day may be dropped.
        if let Some(url) = &config.archive_url {
            unless_locked("the URL of the archive", || store.set_archive_target(url, &config.name)).await?;
        }
        let broker_id =
            unless_locked("the row of this broker", || store.register_broker(&config.name, config.broker_lease))
                .await?;
        let (unsent, unsent_jobs) = mpsc::unbounded_channel();
        let wake = Wake::new(config.wake == WakeMode::Listen);
        let registry = Arc::new(Registry::new(store.clone(), &config));
        let traces = Traces::start(collector, config.otlp.sample_ratio, &database_id, &registry, &metrics.traces);
        let dispatch = Arc::new(Dispatch::new(broker_id, wake.clone(), unsent, traces.clone(), metrics.clone()));
        let settings_version = unless_locked("what there is to do", || store.sweep(None)).await?.settings_version;
        if keeps_tokens {
            unless_locked("the tokens", || access.refresh(settings_version)).await?;
        }
        unless_locked("the settings", || registry.refresh(settings_version)).await?;
        dispatch.set_limited(registry.limited_types());
        dispatch.pause(registry.paused());

        let mut critical = CriticalTasks::new(panicked.clone());
        let writer = settle::Writer::new(&config, &store, &registry, &dispatch, &wake, &metrics);
        let settle = Settle::start(&mut critical, &config, &writer);
        let release = Release::new(writer);
        let progress = Progress::start(&mut critical, &config, &store);
        let intake = Intake::start(&mut critical, &config, &store, registry.clone(), &wake, &dispatch, metrics.clone());
        critical.spawn("claim", dispatch.clone().claim_always(store.clone()));

        let sessions = Arc::new(Sessions::default());
        // These end with the process: they are needed until the last write.
        tokio::spawn(release.clone().unsent_always(unsent_jobs));
        tokio::spawn(watch_unsent(sessions.clone(), dispatch.clone()));
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
            access: access.clone(),
            keeps_tokens,
            metrics,
            release,
            check_template,
            scheduled_floor: Mutex::default(),
            renewal: Mutex::new(maintain::Renewal::new()),
            readopt: AtomicBool::new(false),
            number: tokio::sync::Mutex::default(),
            ended_leases: maintain::Hints::default(),
            sweep_now: Notify::new(),
            rescue_now: Notify::new(),
            partitions_now: Notify::new(),
            rerank_now: Notify::new(),
            limits_now: Notify::new(),
            statistics_now: Notify::new(),
            turns: maintain::Turns::default(),
            job_counts: maintain::job_gauges::JobCounts::default(),
            waiters: Waiters::default(),
        });
        let mut background = maintain::start(&context);
        tracing::info!(broker = broker_id, name = context.config.name, "broker started");
        let operator = Operator::new(context.clone());
        background.spawn(operate::bulk::always(operator.clone()));
        let background = Mutex::new(Some(background));
        let critical = Mutex::new(Some(critical));
        Ok(Arc::new(Self {
            intake,
            workers,
            operator,
            answers,
            access,
            page_token_key,
            database_id,
            context,
            background,
            critical,
            panicked,
        }))
    }

    /// Stops taking part. There are no more claims, and jobs that were not sent are released. Workers are asked to
    /// reconnect elsewhere by the deadline. Outcomes are accepted to the end.
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

    /// After the last call was answered: writes what is pending, and unregisters from the database. Workers may resume
    /// with their leases at another broker within the grace time.
    pub async fn stop(&self, deadline: Duration) {
        let c = &self.context;
        let leaving = async {
            self.intake.close();
            self.workers.settle.close();
            self.workers.progress.close();
            // A claim or batch in progress ends first: then all jobs that could not be sent are known.
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
                tracing::warn!(%error, "could not unregister the broker; other brokers notice when its lease ends");
            }
        };
        let begun = Instant::now();
        if tokio::time::timeout(deadline, leaving).await.is_err() {
            tracing::warn!("stopping took too long; other brokers rescue the leases that are left");
        }
        c.dispatch.traces().stop(LAST_SPANS.min(deadline.saturating_sub(begun.elapsed()))).await;
    }

    /// Ready when a critical task has panicked: the broker cannot go on.
    pub async fn failed(&self) {
        self.panicked.cancelled().await;
    }

    /// Whether a critical task has panicked.
    pub fn has_failed(&self) -> bool {
        self.panicked.is_cancelled()
    }

    /// Since when its store has had a type of this name; `None`: it has none.
    pub(crate) async fn type_created(&self, name: &TaskTypeName) -> Result<Option<SystemTime>, StoreError> {
        self.context.store.task_type_created(name.as_str()).await
    }

    /// Whether its store has not answered for a while: calls are refused at once, so that they wait for nothing.
    pub(crate) fn is_away(&self) -> bool {
        self.context.store.is_away()
    }

    /// Whether the broker is stopping.
    pub fn is_draining(&self) -> bool {
        self.workers.is_draining()
    }

    /// What the read replica is good for, if there is one.
    pub fn replica_state(&self) -> Option<ReplicaState> {
        self.context.store.replica_state()
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.context.config
    }

    /// The settings of the cluster, as this broker knows them now.
    pub fn cluster(&self) -> Arc<ClusterSettings> {
        self.context.registry.cluster()
    }

    /// The version of the settings that this broker goes by.
    pub(crate) fn settings_version(&self) -> i64 {
        self.context.registry.version()
    }

    /// Whether its store is closed to new jobs, as this broker knows now.
    pub(crate) fn is_closed(&self) -> bool {
        self.context.registry.closed().is_some()
    }

    /// Its metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.context.metrics
    }
}
