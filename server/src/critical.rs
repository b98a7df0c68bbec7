//! The tasks that the hot path needs. If one panicked and the others went on, the broker would look healthy and do
//! nothing. So the broker stops instead, and its supervisor restarts it.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Tasks that end only when the broker does.
pub(crate) struct CriticalTasks {
    handles: Vec<JoinHandle<()>>,
    panicked: CancellationToken,
}

impl CriticalTasks {
    /// No tasks yet. `panicked` is cancelled when a task panics.
    pub(crate) fn new(panicked: CancellationToken) -> Self {
        Self { handles: Vec::new(), panicked }
    }

    /// Runs a task.
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

    /// Waits until all have ended.
    pub(crate) async fn ended(self) {
        for handle in self.handles {
            let _ = handle.await;
        }
    }
}
