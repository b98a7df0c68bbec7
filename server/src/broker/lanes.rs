//! The tasks that the hot path needs. One that panics would leave a broker that looks alive and does
//! nothing: instead the broker stops, and whoever supervises it starts it again.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Tasks that end only when the broker does.
pub(crate) struct Lanes {
    handles: Vec<JoinHandle<()>>,
    fatal: CancellationToken,
}

impl Lanes {
    pub(crate) fn new(fatal: CancellationToken) -> Self {
        Self { handles: Vec::new(), fatal }
    }

    /// Runs it; if it panics, the broker fails.
    pub(crate) fn spawn(&mut self, name: &'static str, lane: impl Future<Output = ()> + Send + 'static) {
        let fatal = self.fatal.clone();
        let running = tokio::spawn(lane);
        self.handles.push(tokio::spawn(async move {
            if let Err(error) = running.await
                && error.is_panic()
            {
                tracing::error!(lane = name, %error, "a part of the broker has ended that must not");
                fatal.cancel();
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
