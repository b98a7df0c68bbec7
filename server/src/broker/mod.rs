//! A broker: steps 1 to 6 put together, and what the gRPC services call.

mod calls;
mod failed;
mod jobs;
mod lanes;
mod reprioritize;
mod schedules;
mod selection;
mod wait;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use failed::{RETRY_STATES, RetryAnswer, RetryQuery};
pub use jobs::{CANCEL_STATES, ListQuery};
pub(crate) use lanes::Lanes;
pub(crate) use reprioritize::ReprioritizeQuery;
pub use selection::{Selection, TypeSelection};
pub(crate) use wait::{Told, Waiting, wait_jobs};

use crate::{
    config::{Config, WakeMode},
    dispatch::Dispatch,
    error::Error,
    intake::Intake,
    job::{Lease, TaskTypeName, TypeId, schedule::CheckTemplate},
    maintain::{self, Context, Tasks},
    metrics::Metrics,
    progress::Progress,
    registry::Registry,
    session::{Sessions, watch_unsent},
    settle::{GiveBack, Returned, Settle},
    store::{Action, Store, StoreError},
    wake::Wake,
};

/// Makes a repeat of an enqueue safe.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The caller's key.
    pub key: String,
    /// SHA-256 of the jobs: the same key with other jobs is refused.
    pub body_hash: [u8; 32],
}

/// One broker; stateless but for the streams it holds.
pub struct Broker {
    context: Arc<Context>,
    intake: Intake,
    settle: Settle,
    progress: Progress,
    draining: AtomicBool,
    tasks: parking_lot::Mutex<Option<Tasks>>,
    lanes: parking_lot::Mutex<Option<Lanes>>,
    fatal: CancellationToken,
}

/// Shared by every service and session.
pub type SharedBroker = Arc<Broker>;

impl Broker {
    /// Registers in the database and starts every task. The schema must be up to date.
    pub async fn start(
        config: Config,
        store: Store,
        metrics: Arc<Metrics>,
        check_template: CheckTemplate,
    ) -> Result<SharedBroker, StoreError> {
        let broker_id = store.register_broker(&config.name, config.broker_lease).await?;
        let (unsent, give_back_unsent) = mpsc::unbounded_channel();
        let dispatch = Arc::new(Dispatch::new(broker_id, unsent, metrics.clone()));
        let wake = Wake::new(dispatch.clone(), config.wake == WakeMode::Listen);
        let registry = Arc::new(Registry::new(store.clone(), &config));
        registry.refresh(store.sweep(None).await?.settings_version).await?;
        dispatch.set_limited(registry.limited_types());
        dispatch.pause(registry.paused());
        let fatal = CancellationToken::new();
        let mut lanes = Lanes::new(fatal.clone());
        let intake = Intake::start(&mut lanes, &config, &store, registry.clone(), &wake, &dispatch, metrics.clone());
        let settle = Settle::start(&mut lanes, &config, &store, &registry, &wake, &metrics);
        let progress = Progress::start(&mut lanes, &config, &store);
        let give_back =
            GiveBack::new(&config, store.clone(), registry.clone(), wake.clone(), metrics.clone(), dispatch.clone());
        let sessions = Arc::new(Sessions::default());
        let context = Arc::new(Context {
            config,
            store,
            wake,
            dispatch,
            sessions,
            registry,
            metrics,
            give_back,
            check_template,
            scheduled_floor: parking_lot::Mutex::default(),
            renewing_since: parking_lot::Mutex::new(Some(tokio::time::Instant::now())),
            readopt: AtomicBool::new(false),
            sweep_now: tokio::sync::Notify::new(),
            rescue_now: tokio::sync::Notify::new(),
            rerank_now: tokio::sync::Notify::new(),
            limits_now: tokio::sync::Notify::new(),
            waiting: Waiting::default(),
        });
        let c = &context;
        lanes.spawn("claim", c.dispatch.clone().claim_always(c.store.clone(), c.wake.clone()));
        // These end with the process: what they do is needed to the last.
        tokio::spawn(c.give_back.clone().unsent_always(give_back_unsent));
        tokio::spawn(watch_unsent(c.sessions.clone(), c.dispatch.clone()));
        let tasks = parking_lot::Mutex::new(Some(maintain::start(&context)));
        tracing::info!(broker = broker_id, name = context.config.name, "broker started");
        let lanes = parking_lot::Mutex::new(Some(lanes));
        Ok(Arc::new(Self { context, intake, settle, progress, draining: AtomicBool::new(false), tasks, lanes, fatal }))
    }

    /// Stops taking part: no new claims, what was not sent goes back, workers are asked to move on and
    /// have until the deadline; settles are taken to the end.
    pub async fn drain(&self, deadline: Duration) {
        self.draining.store(true, Ordering::Release);
        let c = &self.context;
        c.dispatch.close();
        c.sessions.drain_all(&c.dispatch);
        if tokio::time::timeout(deadline, c.sessions.all_closed()).await.is_err() {
            tracing::warn!(
                streams = c.sessions.open(),
                "workers did not move on by the deadline; ending their streams"
            );
            c.sessions.end_all();
        }
    }

    /// After the last call was answered: writes what is left, and leaves the database. What workers
    /// still hold they may bring to another broker within the grace time.
    pub async fn stop(&self, deadline: Duration) {
        let c = &self.context;
        let leaving = async {
            self.intake.close();
            self.settle.close();
            self.progress.close();
            // A claim or a batch that is under way ends first: then all that could not be sent is known.
            let lanes = self.lanes.lock().take();
            if let Some(lanes) = lanes {
                lanes.ended().await;
            }
            c.dispatch.flush().await;
            let tasks = self.tasks.lock().take();
            if let Some(tasks) = tasks {
                tasks.stop().await;
            }
            if let Err(error) = c.store.retire_broker(c.dispatch.broker_id(), c.config.session_grace).await {
                tracing::warn!(%error, "could not say goodbye to the database; others will notice by themselves");
            }
        };
        if tokio::time::timeout(deadline, leaving).await.is_err() {
            tracing::warn!("stopping took too long; what is left is rescued by other brokers");
        }
    }

    /// Ready when a part of it has ended that must not: it cannot go on.
    pub async fn failed(&self) {
        self.fatal.cancelled().await;
    }

    /// Whether it has.
    pub fn has_failed(&self) -> bool {
        self.fatal.is_cancelled()
    }

    /// Whether it is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// What it was configured with.
    pub fn config(&self) -> &Config {
        &self.context.config
    }

    /// The name of a type that this broker has met.
    pub fn type_name(&self, type_id: TypeId) -> Option<TaskTypeName> {
        self.context.registry.name(type_id)
    }

    /// What it measures.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.context.metrics
    }

    /// Whether Postgres answers.
    pub async fn ping_database(&self) -> Result<(), Error> {
        Ok(self.context.store.ping().await?)
    }

    /// Where progress reports go.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(crate) fn store(&self) -> &Store {
        &self.context.store
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.context.registry
    }

    pub(crate) fn dispatch(&self) -> &Arc<Dispatch> {
        &self.context.dispatch
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.context.waiting
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.context.sessions
    }

    /// Gives leases of this broker back, in the background.
    pub(crate) fn give_back(&self, leases: Vec<Lease>, action: Action, error: &'static str) {
        self.return_leases(Returned { leases, action, error: Some(error), pulled: false });
    }

    /// Gives leases of this broker back uncounted, in the background.
    pub(crate) fn release(&self, leases: Vec<Lease>) {
        self.return_leases(Returned { leases, action: Action::Release, error: None, pulled: false });
    }

    fn return_leases(&self, returned: Returned) {
        if !returned.leases.is_empty() {
            let give_back = self.context.give_back.clone();
            tokio::spawn(async move { give_back.until_done(returned).await });
        }
    }
}
