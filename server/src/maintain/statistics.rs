//! Sums up what has happened into the statistics of task types.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::Notify, time::Instant};

use super::{Context, in_turn};
use crate::store::StoreError;

/// How often, at least, while anything happens: what `GetStats` answers is as old as this.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// How often at rest. A sum of nothing writes and commits, too: every 5 s, sums cost Postgres as much as all else that an idle broker asks.
const AT_REST: Duration = Duration::from_secs(60);
/// How often, at most.
const SHORTEST: Duration = Duration::from_millis(100);
/// So many changes are summed up at a time, if possible: they take 3 to 7 ms. Jobs wait for a processor while a longer statement has one.
const CHANGES: i64 = 2_000;
/// The most changes in a statement, when many have gathered.
const BATCH: i32 = 20_000;

pub(super) async fn always(context: Arc<Context>) {
    let changes = || context.metrics.changes();
    let mut pause = EVERY;
    loop {
        let before = changes();
        let taken = in_turn(&context, "summing up statistics", || run_once(&context, pause)).await;
        pause = next(pause, taken);
        tokio::time::sleep(pause).await;
        if taken.is_none_or(|taken| taken == 0) {
            rest(|| changes() == before, &context.statistics_now).await;
        }
    }
}

/// Until when statistics are complete, for somebody who reads them: if the last sum was long ago, as at rest, there is another one
/// first. `None`: there was none yet. A replica does not have that sum yet, so for its readers the time stays that of the last one.
pub(crate) async fn complete_until(context: &Context) -> Result<Option<SystemTime>, StoreError> {
    let (until, is_old) = context.store.statistics_until(EVERY * 2).await?;
    if !is_old {
        return Ok(until);
    }
    match context.store.sum_statistics(BATCH, EVERY.as_millis() as i64).await {
        Ok(_) if context.store.has_replica() => Ok(until),
        Ok(_) => Ok(context.store.statistics_until(EVERY).await?.0),
        Err(error) => {
            tracing::debug!(%error, "statistics are read as they were summed up last");
            Ok(until)
        }
    }
}

/// Waits while nothing is counted here and no notification comes, but not for long: others count, too, such as functions of SQL.
async fn rest(is_quiet: impl Fn() -> bool, now: &Notify) {
    let end = Instant::now() + AT_REST - EVERY;
    while is_quiet() && Instant::now() < end {
        tokio::select! {
            () = now.notified() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Sums up all that there is, unless somebody did so within most of this pause. Returns how many changes there were.
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

/// How long it takes until `CHANGES` have gathered, after so many came within a pause. Whoever finds that another broker sums up
/// only looks whether it still does.
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
        // One announcement is one sum.
        assert!(rest(|| true, &now).now_or_never().is_none());
    }

    #[test]
    fn a_broker_whose_sums_another_one_makes_looks_again_after_5_s() {
        assert_eq!(next(Duration::from_millis(500), None), EVERY);
        assert_eq!(next(Duration::from_millis(500), Some(0)), EVERY);
    }
}
