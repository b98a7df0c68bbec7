//! The receivers of jobs.

use std::sync::Arc;

use super::{Dispatch, SessionKey};
use crate::job::LeasedJob;

/// A worker, as dispatch knows it: it has windows and takes jobs.
pub(crate) trait Recipient: Send + Sync {
    /// Its number within this broker.
    fn key(&self) -> SessionKey;

    /// The weight of the largest job that fits into a message to this worker.
    fn max_job_bytes(&self) -> u64;

    /// Takes jobs to send, and returns them if it can take none any more. They are sent after [`Recipient::wake`].
    fn offer(self: Arc<Self>, jobs: Vec<LeasedJob>, dispatch: &Dispatch) -> Vec<LeasedJob>;

    /// Sends what it was offered.
    fn wake(&self);
}

/// Workers that have been offered jobs, and are still to be woken.
#[must_use]
pub(crate) struct Offered(Vec<Arc<dyn Recipient>>);

impl Offered {
    pub(super) fn to(recipients: Vec<Arc<dyn Recipient>>) -> Self {
        Self(recipients)
    }

    /// Sends the jobs, and answers their callers, of whom there are so many. The jobs leave first.
    ///
    /// When a task ends its turn, tokio first runs the task that it has woken last (the scheduler's LIFO slot), and then the
    /// others in the order in which they were woken. So a single caller is answered before its worker is woken, and many
    /// callers are answered after.
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
