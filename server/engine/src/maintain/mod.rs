//! Step 6 of a job's path: maintenance tasks, which act by the clock. Each task has a function `run_once`, and a loop
//! that decides when to call it. Every broker runs all tasks; SQL statements ensure that each action happens once.

mod admit;
#[cfg(feature = "archive")]
mod archive;
mod background_mutex;
pub(crate) mod clock;
pub(crate) mod clock_watch;
mod connections;
mod expire;
mod held_leases;
pub mod job_gauges;
mod limits;
mod notifications;
mod promote;
mod renew;
mod replan;
mod replica;
pub(crate) mod rerank;
mod rescue;
pub mod retention;
pub mod schedules;
mod snapshot_watch;
pub(crate) mod statistics;
mod storage;
mod sweep;
mod time_out;
mod maintenance_gauges;
mod workers;

use std::{
    collections::HashMap,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;
use howdah_core::{
    config::{Config, WakeMode},
    job::{Lease, schedule::CheckTemplate},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

pub(crate) use background_mutex::BackgroundMutex;
pub(crate) use held_leases::Hints;
pub(crate) use renew::Renewal;

use crate::{
    backoff::Backoff,
    dispatch::Dispatch,
    doctor::Examination,
    metrics::Metrics,
    registry::Registry,
    session::Sessions,
    settle::Release,
    store::{Store, StoreError},
    waiters::Waiters,
    wake::{Loss, Wake, announce_all, run_listen},
};

/// Time from the start of a broker until it first reads metrics about the storage, so that claims come first.
const BEFORE_READINGS: Duration = Duration::from_secs(3);

/// Reads the tokens of callers again if the version of the settings has changed.
pub type RefreshTokens = Arc<dyn Fn(i64) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

/// State that the maintenance tasks share.
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Store,
    pub(crate) wake: Wake,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) registry: Arc<Registry>,
    /// Set if this store holds the tokens of callers.
    pub(crate) refresh_tokens: Option<RefreshTokens>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) release: Release,
    /// Validates a schedule's template and creates a job from it.
    pub(crate) check_template: CheckTemplate,
    /// Lower bound of the search for due jobs: all jobs that were due before this time have been promoted.
    pub(crate) scheduled_floor: Mutex<Option<std::time::SystemTime>>,
    /// Comparison of the database's clock with this broker's clocks.
    pub(crate) clock: Mutex<clock_watch::ClockWatch>,
    /// Set if the database has a clock that tests advance.
    pub(crate) test_clock: Option<clock::TestClock>,
    /// Notified when tests have advanced the database's clock.
    pub(crate) clock_advanced: Notify,
    /// Notified when the database's clock was set back.
    pub(crate) clock_back: Notify,
    /// State of the renewals of this broker's row.
    pub(crate) renewal: Mutex<Renewal>,
    /// Set while the broker has a new id and some leases of its workers still have the old id.
    pub(crate) readopt: std::sync::atomic::AtomicBool,
    /// Locked while this broker changes its id, and by tasks that must not run during the change.
    pub(crate) id_change: tokio::sync::Mutex<()>,
    /// Hints from other brokers about ended leases of this broker's workers.
    pub(crate) ended_leases: Hints,
    /// Requests a sweep.
    pub(crate) sweep_now: Notify,
    /// Requests a rescue.
    pub(crate) rescue_now: Notify,
    /// Schedules that this broker cannot plan and skips for a time.
    pub(crate) skipped_schedules: schedules::SkippedSchedules,
    /// Callers that wait for jobs to end.
    pub(crate) waiters: Waiters,
    /// Notified when a day partition is missing.
    pub(crate) partitions_now: Notify,
    /// Notified when the `priority_step` of a task type may have changed.
    pub(crate) rerank_now: Notify,
    /// Notified when the limits of a task type may have changed.
    pub(crate) limits_now: Notify,
    /// Notified when jobs have changed outside this broker, so that statistics need an update.
    pub(crate) statistics_now: Notify,
    /// Serializes maintenance tasks that are not urgent.
    pub(crate) background_mutex: BackgroundMutex,
    /// Last examination of the database. `None` before the first one, and while it fails.
    pub(crate) examination: Mutex<Option<Arc<Examination>>>,
    /// Numbers of jobs from the last count.
    pub(crate) job_counts: job_gauges::JobCounts,
}

impl Context {
    /// Returns the time of this broker's clock. If the database has a test clock, adds the time by which tests have advanced it.
    pub(crate) fn now(&self) -> SystemTime {
        SystemTime::now() + self.test_clock.as_ref().map_or(Duration::ZERO, clock::TestClock::ahead)
    }

    /// Looks for everything that is due, after tests have advanced the clock of the database.
    pub(crate) async fn look_again(&self) -> Result<(), StoreError> {
        sweep::run_once(self).await.map(drop)
    }

    /// Applies settings of this version, which a call to this broker has changed, before the call is answered. Other
    /// brokers apply them after a notification or at their next sweep. If this broker cannot read the settings, it
    /// applies them at its next sweep.
    pub(crate) async fn settings_changed(&self, version: i64) {
        self.wake.settings_changed();
        if let Err(error) = self.refresh_settings(version).await {
            tracing::debug!(%error, "cannot read the settings; trying again at the next poll");
        }
    }

    /// Tells the workers that they have lost these leases, each with its broker.
    pub(crate) fn tell_workers(&self, leases: impl IntoIterator<Item = (Lease, i32)>, loss: Loss) {
        let mut of_brokers: HashMap<i32, Vec<Lease>> = HashMap::new();
        for (lease, broker) in leases {
            of_brokers.entry(broker).or_default().push(lease);
        }
        for (broker, leases) in of_brokers {
            if broker == self.dispatch.broker_id() {
                self.sessions.cancel(&leases, loss.into(), &self.dispatch);
            } else {
                self.wake.lost_elsewhere(broker, leases.iter().map(|lease| lease.id).collect(), loss);
            }
        }
    }

    /// Sets the alarms (timers) of maintenance tasks to the next due times in the database. An alarm keeps only its
    /// earliest time, so it must be set again after each ring.
    pub(crate) async fn set_alarms(&self) -> Result<(), StoreError> {
        let next = self.store.next_due().await?;
        let set = |alarm: fn(&Wake, Duration), due: Option<Duration>| {
            if let Some(due) = due {
                alarm(&self.wake, due);
            }
        };
        set(Wake::due_in, next.job);
        set(Wake::deadline_in, next.deadline);
        set(Wake::expiry_in, next.expiry);
        set(Wake::schedule_in, next.schedule);
        Ok(())
    }

    /// Reads the settings of task types and of the cluster, unless this broker already has this version.
    pub(crate) async fn refresh_settings(&self, version: i64) -> Result<(), StoreError> {
        if let Some(refresh) = &self.refresh_tokens {
            refresh(version).await?;
        }
        if self.registry.refresh(version).await? {
            self.dispatch.pause(self.registry.paused());
            self.dispatch.set_limited(self.registry.limited_types());
            self.rerank_now.notify_one();
            self.limits_now.notify_one();
            // Stores the new version in this broker's row, for callers that wait until all brokers have applied the
            // settings. If the row is locked, the next renewal stores the version.
            let (store, id, lease) = (self.store.clone(), self.dispatch.broker_id(), self.config.broker_lease);
            let version = self.registry.version();
            tokio::spawn(async move {
                if let Err(error) = store.renew_broker(id, lease, version).await {
                    tracing::debug!(%error, "cannot record the broker's settings version; its next heartbeat records it");
                }
            });
        }
        Ok(())
    }
}

/// The running maintenance tasks. Dropping the value aborts them.
pub(crate) struct Tasks(tokio::task::JoinSet<()>);

impl Tasks {
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Ends all tasks.
    pub(crate) async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

/// Starts all tasks.
pub(crate) fn start(context: &Arc<Context>) -> Tasks {
    let mut tasks = tokio::task::JoinSet::new();
    let c = || context.clone();
    tasks.spawn(sweep::run(c()));
    tasks.spawn(clock::run(c()));
    tasks.spawn(connections::run(c()));
    tasks.spawn(promote::run(c()));
    tasks.spawn(admit::run(c()));
    tasks.spawn(expire::run(c()));
    tasks.spawn(schedules::run(c()));
    tasks.spawn(time_out::run(c()));
    tasks.spawn(rescue::run(c()));
    tasks.spawn(renew::run(c()));
    tasks.spawn(workers::run(c()));
    tasks.spawn(held_leases::run(c()));
    tasks.spawn(rerank::run(c()));
    tasks.spawn(limits::run(c()));
    tasks.spawn(retention::run(c()));
    tasks.spawn(job_gauges::run(c()));
    tasks.spawn(storage::run(c()));
    if context.store.has_replica() {
        tasks.spawn(replica::run(c()));
    }
    tasks.spawn(statistics::run(c()));
    tasks.spawn(maintenance_gauges::run(c()));
    #[cfg(feature = "archive")]
    tasks.spawn(archive::run(c()));
    if context.config.wake == WakeMode::Listen {
        let channel = channel(context.store.schema());
        let (sender, heard) = mpsc::channel(256);
        let dispatch = context.dispatch.clone();
        let broker_id = move || dispatch.broker_id();
        tasks.spawn(run_listen(context.store.clone(), channel.clone(), broker_id, context.metrics.clone(), sender));
        tasks.spawn(notifications::run(c(), heard));
        tasks.spawn(announce_all(context.wake.clone(), context.store.clone(), channel));
    }
    Tasks(tasks)
}

/// Returns the notification channel for the brokers of one schema.
fn channel(schema: &str) -> String {
    format!("{schema}_wake")
}

/// Calls `run_once` until it succeeds, with exponential backoff, and logs its errors.
pub(crate) async fn until_done<T, F: Future<Output = Result<T, StoreError>>>(
    context: &Context,
    what: &str,
    mut run_once: impl FnMut() -> F,
) -> T {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        match run_once().await {
            Ok(done) => return done,
            Err(error) => context.store.log_failure(what, &error),
        }
        backoff.pause().await;
    }
}

/// Calls `run_once` at once, then whenever `notify` is notified, and after the time that the last call has returned.
async fn repeat<F: Future<Output = Result<Option<Duration>, StoreError>>>(
    context: &Context,
    notify: &Notify,
    what: &str,
    mut run_once: impl FnMut() -> F,
) {
    loop {
        let next = until_done(context, what, &mut run_once).await;
        let again = async {
            match next {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = notify.notified() => {}
            () = again => {}
        }
    }
}

/// Calls `run_once` until it succeeds, for maintenance tasks that are not urgent. Locks the background mutex during
/// each call.
async fn run_serialized<T, F: Future<Output = Result<T, StoreError>>>(
    context: &Context,
    what: &str,
    mut run_once: impl FnMut() -> F,
) -> T {
    until_done(context, what, || {
        let run = run_once();
        async {
            let _guard = context.background_mutex.lock().await;
            run.await
        }
    })
    .await
}
