//! Tasks that are in no hurry take turns. All figures for the metrics are read every 15 s; read at once, they would have every
//! processor of a small machine while jobs wait, and a session for each, which has to plan its statements first.

use std::time::Duration;

use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout,
};

/// How long a task waits for its turn, at most: counting the jobs of large tables takes seconds.
const LONGEST: Duration = Duration::from_secs(1);

/// Whose turn it is.
#[derive(Default)]
pub(crate) struct Turns(Mutex<()>);

impl Turns {
    /// Waits until nobody else has the turn, which ends with what is returned; `None`: that takes too long, so the task goes on anyway.
    pub(super) async fn wait(&self) -> Option<MutexGuard<'_, ()>> {
        timeout(LONGEST, self.0.lock()).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_task_at_a_time_has_the_turn() {
        let turns = Turns::default();
        let first = turns.wait().await;
        assert!(first.is_some() && turns.wait().now_or_never().is_none());
        drop(first);
        assert!(turns.wait().now_or_never().flatten().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_goes_on_if_another_one_has_the_turn_for_long() {
        let turns = Turns::default();
        let _first = turns.wait().await;
        assert!(turns.wait().await.is_none());
    }
}
