//! Receivers of jobs.

use std::sync::Arc;

use howdah_core::job::LeasedJob;

use super::{Dispatch, SessionKey};

/// A worker from the view of dispatch: it has windows and takes jobs.
pub(crate) trait Recipient: Send + Sync {
    /// Returns the worker's number within this broker.
    fn key(&self) -> SessionKey;

    /// Returns the size in bytes of the largest job that fits into a message to this worker.
    fn max_job_bytes(&self) -> u64;

    /// Queues jobs, which are sent after [`Recipient::wake`]. Returns the jobs if the worker can no longer take them.
    fn offer(self: Arc<Self>, jobs: Vec<LeasedJob>, dispatch: &Dispatch) -> Vec<LeasedJob>;

    /// Sends the offered jobs.
    fn wake(&self);
}

/// Workers that were offered jobs and have to be woken.
#[must_use]
pub(crate) struct Offered(Vec<Arc<dyn Recipient>>);

impl Offered {
    pub(super) fn to(recipients: Vec<Arc<dyn Recipient>>) -> Self {
        Self(recipients)
    }

    /// Sends the jobs and answers the callers, ordered such that tokio runs the tasks of the workers first. `callers`
    /// is the number of callers.
    ///
    /// When a task yields, tokio first runs the task that was woken last (the LIFO slot of the scheduler). Then it runs
    /// the others in the order of their wake-ups. So a single caller is answered before its worker is woken, and
    /// several callers are answered afterwards.
    pub(crate) fn send_and_answer(self, callers: usize, answer: impl FnOnce()) {
        if callers == 1 {
            answer();
            self.wake();
        } else {
            self.wake();
            answer();
        }
    }

    /// Sends the jobs.
    pub(super) fn wake(self) {
        self.0.iter().for_each(|recipient| recipient.wake());
    }
}
