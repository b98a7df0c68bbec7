//! Step 6, background tasks. Every task has a `run_once`, and a loop that decides when to call it. Every broker runs
//! all of them; the statements make sure that each thing is done once.

mod admit;
#[cfg(feature = "archive")]
mod archive;
mod expire;
mod held_leases;
pub(crate) mod job_gauges;
mod limits;
mod notifications;
mod promote;
mod renew;
mod replica;
pub(crate) mod rerank;
mod rescue;
pub(crate) mod retention;
pub(crate) mod schedules;
mod snapshot_watch;
pub(crate) mod statistics;
mod storage;
mod sweep;
mod time_out;
mod turns;
mod upkeep;
mod workers;

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

pub(crate) use held_leases::Hints;
pub(crate) use renew::Renewal;
pub(crate) use turns::Turns;

use crate::{
    access::Access,
    backoff::Backoff,
    config::{Config, WakeMode},
    dispatch::Dispatch,
    job::schedule::CheckTemplate,
    metrics::Metrics,
    registry::Registry,
    session::Sessions,
    settle::Release,
    store::{Store, StoreError},
    waiters::Waiters,
    wake::{Wake, announce_all, listen_always},
};

/// The state that the tasks share.
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Store,
    pub(crate) wake: Wake,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) access: Arc<Access>,
    /// The credentials that callers show are in this store.
    pub(crate) keeps_tokens: bool,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) release: Release,
    /// Makes jobs from the templates of schedules.
    pub(crate) check_template: CheckTemplate,
    /// Where to start looking for due jobs: all earlier ones were promoted.
    pub(crate) scheduled_floor: Mutex<Option<std::time::SystemTime>>,
    /// How this broker's own lease was renewed.
    pub(crate) renewal: Mutex<Renewal>,
    /// The broker has a new id, and not all leases of its workers have it yet.
    pub(crate) readopt: std::sync::atomic::AtomicBool,
    /// Held while this broker gets another number, and by whoever must not meet that.
    pub(crate) number: tokio::sync::Mutex<()>,
    /// Leases that others say they have ended.
    pub(crate) ended_leases: Hints,
    /// A sweep is wanted now.
    pub(crate) sweep_now: Notify,
    /// Requests a rescue now.
    pub(crate) rescue_now: Notify,
    /// Callers that wait for jobs to end.
    pub(crate) waiters: Waiters,
    /// A partition is missing.
    pub(crate) partitions_now: Notify,
    /// A task type may have a new priority step.
    pub(crate) rerank_now: Notify,
    /// A task type may have new limits.
    pub(crate) limits_now: Notify,
    /// Statistics may have changed by what this broker has not counted.
    pub(crate) statistics_now: Notify,
    /// Of the tasks that are in no hurry.
    pub(crate) turns: Turns,
    /// Numbers of jobs, as they were counted last.
    pub(crate) job_counts: job_gauges::JobCounts,
}

impl Context {
    /// Settings were changed here, and this is their version now. This broker goes by them before it answers, the others
    /// when they are notified or sweep; so does this one if it cannot read them now.
    pub(crate) async fn settings_changed(&self, version: i64) {
        self.wake.settings_changed();
        if let Err(error) = self.refresh_settings(version).await {
            tracing::debug!(%error, "settings are read again with the next sweep");
        }
    }

    /// Sets the alarms to what is due next. An alarm knows only the earliest of the times that it was set to, so it is set
    /// again whenever it has rung.
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

    /// The same, after a change that took place; if it fails, the sweep finds what is due.
    pub(crate) async fn alarms_or_sweep(&self) {
        if let Err(error) = self.set_alarms().await {
            tracing::debug!(%error, "the sweep sets the alarms");
            self.sweep_now.notify_one();
        }
    }

    /// Reads the settings of types and of the cluster if this version is new.
    pub(crate) async fn refresh_settings(&self, version: i64) -> Result<(), StoreError> {
        if self.keeps_tokens {
            self.access.refresh(version).await?;
        }
        if self.registry.refresh(version).await? {
            self.dispatch.pause(self.registry.paused());
            self.dispatch.set_limited(self.registry.limited_types());
            self.rerank_now.notify_one();
            self.limits_now.notify_one();
            // Who waits until all brokers go by it asks their rows. If this row is locked, the next renewal says so.
            let (store, id, lease) = (self.store.clone(), self.dispatch.broker_id(), self.config.broker_lease);
            let version = self.registry.version();
            tokio::spawn(async move {
                if let Err(error) = store.renew_broker(id, lease, version).await {
                    tracing::debug!(%error, "the next renewal says which settings this broker goes by");
                }
            });
        }
        Ok(())
    }
}

/// The running tasks; aborted when dropped.
pub(crate) struct Tasks(tokio::task::JoinSet<()>);

impl Tasks {
    /// Runs another task beside them.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Ends them all.
    pub(crate) async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

/// Starts every task.
pub(crate) fn start(context: &Arc<Context>) -> Tasks {
    let mut tasks = tokio::task::JoinSet::new();
    let c = || context.clone();
    tasks.spawn(sweep::always(c()));
    tasks.spawn(promote::always(c()));
    tasks.spawn(admit::always(c()));
    tasks.spawn(expire::always(c()));
    tasks.spawn(schedules::always(c()));
    tasks.spawn(time_out::always(c()));
    tasks.spawn(rescue::always(c()));
    tasks.spawn(renew::always(c()));
    tasks.spawn(workers::always(c()));
    tasks.spawn(held_leases::always(c()));
    tasks.spawn(rerank::always(c()));
    tasks.spawn(limits::always(c()));
    tasks.spawn(retention::always(c()));
    tasks.spawn(job_gauges::always(c()));
    tasks.spawn(storage::always(c()));
    if context.store.has_replica() {
        tasks.spawn(replica::always(c()));
    }
    tasks.spawn(statistics::always(c()));
    tasks.spawn(upkeep::always(c()));
    #[cfg(feature = "archive")]
    tasks.spawn(archive::always(c()));
    if context.config.wake == WakeMode::Listen {
        let channel = channel(context.store.schema());
        let (sender, heard) = mpsc::channel(256);
        tasks.spawn(listen_always(context.store.clone(), channel.clone(), context.metrics.clone(), sender));
        tasks.spawn(notifications::always(c(), heard));
        tasks.spawn(announce_all(context.wake.clone(), context.store.clone(), channel));
    }
    Tasks(tasks)
}

/// The channel for the brokers of one schema.
fn channel(schema: &str) -> String {
    format!("{schema}_wake")
}

/// Calls `run` until it succeeds, with backoff, and logs its errors.
pub(crate) async fn until_done<T, F: Future<Output = Result<T, StoreError>>>(
    context: &Context,
    what: &str,
    mut run_once: impl FnMut() -> F,
) -> T {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        match run_once().await {
            Ok(done) => return done,
            Err(error) => context.store.failed(what, &error),
        }
        backoff.pause().await;
    }
}

/// The same, for what is in no hurry: each time it waits for its turn.
async fn in_turn<T, F: Future<Output = Result<T, StoreError>>>(
    context: &Context,
    what: &str,
    mut run_once: impl FnMut() -> F,
) -> T {
    until_done(context, what, || {
        let run = run_once();
        async {
            let _turn = context.turns.wait().await;
            run.await
        }
    })
    .await
}
