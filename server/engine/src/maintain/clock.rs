//! Maintenance task: reacts to changes of the database's clock. If the clock goes back, stored times that are now too
//! late are corrected. Old data is deleted only while the clock has agreed with this broker's clocks for some time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use howdah_core::durations::short;
use tokio::time::{Instant, timeout};

use super::{
    Context,
    clock_watch::{LogLine, MOST_APART, Observation, Reading},
    replan, until_done,
};
use crate::store::StoreError;

/// Interval of checking stored times when no step of the database's clock was noticed.
const EVERY: Duration = Duration::from_secs(3600);
/// Minimum change of a test clock that counts as an advance, in ms. Smaller changes come from the time that a query takes.
const ADVANCED_MS: u64 = 500;
/// Maximum number of jobs in a statement.
const BATCH: i32 = 10_000;

pub(super) async fn run(context: Arc<Context>) {
    loop {
        until_done(&context, "correcting stored times", || run_once(&context)).await;
        let _ = timeout(EVERY, context.clock_back.notified()).await;
    }
}

/// Corrects times that were stored while the clock was ahead, and times that were planned with outdated time zone
/// rules.
async fn run_once(context: &Context) -> Result<(), StoreError> {
    let went_back = context.store.clock_went_back().await?;
    if went_back {
        let mut from = None;
        while let Some(position) = context.store.correct_scheduled_times(from, BATCH).await? {
            from = Some(position);
        }
        context.store.correct_times().await?;
        tracing::info!("the database's clock has gone back; corrected stored times that had become too late");
    }
    if replan::run_once(context).await? || went_back {
        // The requested sweep sets the alarms for the corrected times.
        context.sweep_now.notify_one();
    }
    Ok(())
}

/// A clock of the database that tests advance. It is reliable by definition, and never goes back.
#[derive(Debug)]
pub(crate) struct TestClock {
    ahead_ms: AtomicU64,
}

impl TestClock {
    pub(crate) fn new(ahead: Duration) -> Self {
        Self { ahead_ms: AtomicU64::new(ahead.as_millis() as u64) }
    }

    /// Returns the time by which tests have advanced the clock, as of the last reading.
    pub(super) fn ahead(&self) -> Duration {
        Duration::from_millis(self.ahead_ms.load(Ordering::Relaxed))
    }

    /// Processes a reading of the clock. Returns whether tests have advanced it since the last reading.
    fn has_advanced(&self, database: SystemTime) -> bool {
        let ahead = database.duration_since(SystemTime::now()).unwrap_or_default().as_millis() as u64;
        self.ahead_ms.swap(ahead, Ordering::Relaxed) + ADVANCED_MS < ahead
    }
}

/// Processes a reading of the database's clock. `asked` is the time at which the query was sent.
pub(super) fn read(context: &Context, database: SystemTime, asked: Instant) {
    if let Some(clock) = &context.test_clock {
        if clock.has_advanced(database) {
            context.dispatch.end_limit_waits();
            context.clock_advanced.notify_one();
        }
        return;
    }
    let reading = Reading { database, asked, answered: Instant::now(), own: SystemTime::now() };
    let (observation, doubtful) = {
        let mut watch = context.clock.lock();
        (watch.observe(reading, context.config.clock_settling), watch.is_doubtful())
    };
    context.metrics.storage.clock_ahead.set(observation.ahead_ms as f64 / 1_000.0);
    context.metrics.storage.clock_doubtful.set(i64::from(doubtful));
    log(context, observation);
    if observation.step_ms < 0 {
        // Resets `scheduled_floor`: it was set while the clock was ahead, so due jobs may be below it.
        *context.scheduled_floor.lock() = None;
        context.clock_back.notify_one();
    }
}

fn log(context: &Context, observation: Observation) {
    let length = |ms: i64| short(Duration::from_millis(ms.unsigned_abs()));
    let settling = short(context.config.clock_settling);
    match observation.log_line {
        LogLine::Nothing => {}
        LogLine::Step => tracing::warn!(
            by = length(observation.step_ms),
            direction = if observation.step_ms < 0 { "back" } else { "forward" },
            "the database's clock has jumped; old data is not deleted until the clocks of database and broker have agreed for \
             {settling}"
        ),
        LogLine::Apart => tracing::warn!(
            by = length(observation.ahead_ms),
            direction = if observation.ahead_ms < 0 { "behind" } else { "ahead" },
            "the database's clock is more than {} apart from this broker's; old data is not deleted until they have \
             agreed for {settling}; check the time service of both machines",
            short(MOST_APART)
        ),
        LogLine::Agree => tracing::info!(
            "the database's clock has agreed with this broker's for {settling}; old data is deleted again"
        ),
    }
}

/// Returns whether old data may be deleted now. The database's clock determines the age of data, so it must have agreed
/// with this broker's clocks for some time. The clock is read again, because another server may have been promoted
/// meanwhile.
pub(super) async fn agrees(context: &Context) -> Result<bool, StoreError> {
    if context.test_clock.is_some() {
        return Ok(true);
    }
    let asked = Instant::now();
    read(context, context.store.clock().await?, asked);
    Ok(context.clock.lock().is_settled(Instant::now(), context.config.clock_settling))
}

/// Returns the time until the clocks should be compared again: when they may have agreed for long enough.
pub(super) fn settles_in(context: &Context) -> Duration {
    const SHORTEST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(10);
    let wait = context.clock.lock().settles_in(Instant::now(), context.config.clock_settling);
    wait.unwrap_or(LONGEST).clamp(SHORTEST, LONGEST)
}
