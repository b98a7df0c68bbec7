//! Serializes maintenance tasks that are not urgent, such as the reading of metrics every 15 s. Run at the same time,
//! they would occupy every processor of a small machine while jobs wait. Each would also need its own database session
//! with its own prepared plans.

use std::time::Duration;

use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout,
};

/// Maximum time that a task waits for the mutex: counting the jobs of large tables takes seconds.
const LONGEST: Duration = Duration::from_secs(1);

/// Mutex that a non-urgent maintenance task holds while it runs.
#[derive(Default)]
pub(crate) struct BackgroundMutex(Mutex<()>);

impl BackgroundMutex {
    /// Locks the mutex. Returns `None` after a timeout; the task then runs without the lock.
    pub(super) async fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        timeout(LONGEST, self.0.lock()).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_task_at_a_time_has_the_lock() {
        let mutex = BackgroundMutex::default();
        let first = mutex.lock().await;
        assert!(first.is_some() && mutex.lock().now_or_never().is_none());
        drop(first);
        assert!(mutex.lock().now_or_never().flatten().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_goes_on_if_another_one_has_the_lock_for_long() {
        let mutex = BackgroundMutex::default();
        let _first = mutex.lock().await;
        assert!(mutex.lock().await.is_none());
    }
}
