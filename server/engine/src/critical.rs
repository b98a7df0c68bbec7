//! Critical tasks, without which no jobs are processed. If one panics, the broker stops, so that its supervisor
//! restarts it. Otherwise the broker would look healthy.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Critical tasks, which run until the broker stops.
pub(crate) struct CriticalTasks {
    handles: Vec<JoinHandle<()>>,
    panicked: CancellationToken,
}

impl CriticalTasks {
    /// Creates an empty set of critical tasks. `panicked` is cancelled when one of them panics.
    pub(crate) fn new(panicked: CancellationToken) -> Self {
        Self { handles: Vec::new(), panicked }
    }

    pub(crate) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let panicked = self.panicked.clone();
        let running = tokio::spawn(task);
        self.handles.push(tokio::spawn(async move {
            if let Err(error) = running.await
                && error.is_panic()
            {
                tracing::error!(task = name, %error, "a critical task panicked; stopping");
                panicked.cancel();
            }
        }));
    }

    /// Waits until all critical tasks have ended.
    pub(crate) async fn ended(self) {
        for handle in self.handles {
            let _ = handle.await;
        }
    }
}
