//! Maintenance task: adds recorded changes of jobs to the statistics of task types.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::Notify, time::Instant};

use super::{Context, clock, run_serialized};
use crate::store::StoreError;

/// Interval of updating statistics while jobs change, if the changes are few. Bounds the age of the data that
/// `GetStats` returns.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// Interval of updating statistics while no jobs change. Even an update without changes writes and commits. At an
/// interval of 5 s, updates would cost Postgres as much as all other queries of an idle broker.
const AT_REST: Duration = Duration::from_secs(60);
/// Interval at which old statistics are deleted.
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Minimum interval of updating statistics.
const SHORTEST: Duration = Duration::from_millis(100);
/// Target number of changes per update. An update of this size takes 3 to 7 ms; a longer one would occupy a processor
/// while jobs wait.
const CHANGES: i64 = 2_000;
/// Maximum number of changes that one statement adds to the statistics.
const BATCH: i32 = 20_000;

pub(super) async fn run(context: Arc<Context>) {
    let changes = || context.metrics.changes();
    let (mut pause, mut forgotten) = (EVERY, Instant::now());
    loop {
        let before = changes();
        let taken = run_serialized(&context, "summing up statistics", || run_once(&context, pause)).await;
        pause = next(pause, taken);
        if forgotten.elapsed() >= FORGET_EVERY {
            run_serialized(&context, "deleting old statistics", || forget(&context)).await;
            forgotten = Instant::now();
        }
        tokio::time::sleep(pause).await;
        if taken.is_none_or(|taken| taken == 0) {
            rest(|| changes() == before, &context.statistics_now).await;
        }
    }
}

/// Deletes statistics of old periods, if the database's clock is reliable.
async fn forget(context: &Context) -> Result<(), StoreError> {
    if clock::agrees(context).await? { context.store.forget_statistics().await } else { Ok(()) }
}

/// Returns the time up to which statistics are complete; `None` before the first update. If the last update is old,
/// makes a new one first. A read replica does not have the new data yet, so with a replica the time of the last update
/// is returned.
pub(crate) async fn complete_until(context: &Context) -> Result<Option<SystemTime>, StoreError> {
    let (until, is_old) = context.store.statistics_until(EVERY * 2).await?;
    if !is_old {
        return Ok(until);
    }
    match context.store.sum_statistics(BATCH, EVERY.as_millis() as i64).await {
        Ok(_) if context.store.has_replica() => Ok(until),
        Ok(_) => Ok(context.store.statistics_until(EVERY).await?.0),
        Err(error) => {
            tracing::debug!(%error, "cannot sum up statistics; returning the last sums");
            Ok(until)
        }
    }
}

/// Waits until this broker counts a change or gets a notification. The wait has a time limit, because changes may also
/// come from elsewhere, such as SQL functions.
async fn rest(is_quiet: impl Fn() -> bool, now: &Notify) {
    let end = Instant::now() + AT_REST - EVERY;
    while is_quiet() && Instant::now() < end {
        tokio::select! {
            () = now.notified() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Adds all recorded changes to the statistics, unless another broker has done so within four fifths of `pause`.
/// Returns the number of changes, or `None` if another broker has done it.
async fn run_once(context: &Context, pause: Duration) -> Result<Option<i64>, StoreError> {
    let within_ms = (pause * 4 / 5).as_millis() as i64;
    let Some(mut all) = context.store.sum_statistics(BATCH, within_ms).await? else { return Ok(None) };
    let mut last = all;
    while last >= i64::from(BATCH) {
        last = context.store.sum_statistics(BATCH, 0).await?.unwrap_or(0);
        all += last;
    }
    Ok(Some(all))
}

/// Returns the pause until the next update: the time in which `CHANGES` changes are expected at the present rate. If
/// another broker updates the statistics, this broker checks at long intervals whether the other one still does.
fn next(pause: Duration, taken: Option<i64>) -> Duration {
    match taken {
        Some(taken) if taken > 0 => pause.mul_f64(CHANGES as f64 / taken as f64).clamp(SHORTEST, EVERY),
        _ => EVERY,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn sums_come_when_two_thousand_changes_have_gathered_and_at_least_every_5_s() {
        assert_eq!(next(EVERY, Some(20_000)), Duration::from_millis(500));
        assert_eq!(next(Duration::from_millis(500), Some(2_000)), Duration::from_millis(500));
        assert_eq!(next(Duration::from_millis(500), Some(400)), Duration::from_millis(2_500));
        assert_eq!(next(Duration::from_millis(500), Some(20)), EVERY);
        assert_eq!(next(Duration::from_millis(500), Some(1_000_000)), SHORTEST);
    }

    #[tokio::test]
    async fn at_rest_a_sum_comes_at_once_when_something_was_counted_or_announced() {
        let now = Notify::new();
        let rested = |quiet| timeout(EVERY / 2, rest(move || quiet, &now));
        assert!(rested(false).await.is_ok(), "counted");
        now.notify_one();
        assert!(rested(true).await.is_ok(), "announced");
        // One notification causes one update.
        assert!(rest(|| true, &now).now_or_never().is_none());
    }

    #[test]
    fn a_broker_whose_sums_another_one_makes_looks_again_after_5_s() {
        assert_eq!(next(Duration::from_millis(500), None), EVERY);
        assert_eq!(next(Duration::from_millis(500), Some(0)), EVERY);
    }
}
