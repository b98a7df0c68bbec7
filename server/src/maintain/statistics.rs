//! Sums up what has happened into the statistics of task types.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::store::StoreError;

/// How often, at least. An idle broker asks nothing else so rarely, so it costs nothing; what `GetStats` answers is as old as this.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// How often, at most.
const SHORTEST: Duration = Duration::from_millis(100);
/// So many changes are summed up at a time, if possible: they take 3 to 7 ms. Jobs wait for a processor while a longer statement has one.
const CHANGES: i64 = 2_000;
/// The most changes in a statement, when many have gathered.
const BATCH: i32 = 20_000;

pub(super) async fn always(context: Arc<Context>) {
    let mut pause = EVERY;
    loop {
        let taken = until_done(&context, "summing up statistics", || run_once(&context, pause)).await;
        pause = next(pause, taken);
        tokio::time::sleep(pause).await;
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
    use super::*;

    #[test]
    fn sums_come_when_two_thousand_changes_have_gathered_and_at_least_every_5_s() {
        assert_eq!(next(EVERY, Some(20_000)), Duration::from_millis(500));
        assert_eq!(next(Duration::from_millis(500), Some(2_000)), Duration::from_millis(500));
        assert_eq!(next(Duration::from_millis(500), Some(400)), Duration::from_millis(2_500));
        assert_eq!(next(Duration::from_millis(500), Some(20)), EVERY);
        assert_eq!(next(Duration::from_millis(500), Some(1_000_000)), SHORTEST);
    }

    #[test]
    fn a_broker_whose_sums_another_one_makes_looks_again_after_5_s() {
        assert_eq!(next(Duration::from_millis(500), None), EVERY);
        assert_eq!(next(Duration::from_millis(500), Some(0)), EVERY);
    }
}
