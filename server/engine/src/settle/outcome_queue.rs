//! Queue of outcomes for the writers.

use std::time::Duration;

use tokio::sync::Mutex;

use super::{commit_delay::CommitDelay, queue::Submission};
use crate::batch::{Batcher, Capacity, Closed, Size};

/// Queued outcomes and the commit delay.
pub(super) struct OutcomeQueue {
    batcher: Batcher<Submission>,
    commit_delay: CommitDelay,
    /// Lets only one writer at a time wait for more outcomes. Otherwise two waiting writers would each write half of
    /// the outcomes.
    waiting: Mutex<()>,
}

impl OutcomeQueue {
    pub(super) fn new(most: Size, longest_wait: Duration) -> Self {
        Self { batcher: Batcher::new(most), commit_delay: CommitDelay::new(longest_wait), waiting: Mutex::new(()) }
    }

    /// Waits for capacity.
    pub(super) async fn room(&self, size: Size) -> Result<Capacity, Closed> {
        self.batcher.room(size).await
    }

    /// Queues outcomes. Returns them if the queue is closed.
    pub(super) fn push(&self, submission: Submission) -> Result<(), Submission> {
        self.commit_delay.arrived();
        self.batcher.push(submission)
    }

    /// Ends the commit delay early, because a caller waits for the answer.
    pub(super) fn skip_delay(&self) {
        self.commit_delay.skip();
    }

    /// Waits for the next batch, and for the commit delay. Returns `None` when the queue is closed and empty.
    pub(super) async fn take(&self, batch: Size) -> Option<Vec<Submission>> {
        let _waiting = self.waiting.lock().await;
        let since = self.batcher.first(Submission::since).await?;
        self.commit_delay.pause(since).await;
        self.batcher.take(batch).await
    }

    /// Closes the queue. Queued outcomes are still written, without a commit delay.
    pub(super) fn close(&self) {
        self.batcher.close();
        self.commit_delay.skip();
    }
}
