//! Tasks that the hot path needs. If one of them panics, the broker stops and its supervisor restarts it. Otherwise the broker
//! would look healthy without processing jobs.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Tasks that run as long as the broker.
pub(crate) struct CriticalTasks {
    handles: Vec<JoinHandle<()>>,
    panicked: CancellationToken,
}

impl CriticalTasks {
    /// Starts without tasks. `panicked` is cancelled when a task panics.
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

    /// Waits until all tasks have ended.
    pub(crate) async fn ended(self) {
        for handle in self.handles {
            let _ = handle.await;
        }
    }
}
