//! Outcomes on their way to the writers.

use std::time::Duration;

use tokio::sync::Mutex;

use super::{linger::Linger, queue::Submission};
use crate::batch::{Batcher, Closed, Room, Size};

/// What has gathered, and when it is written.
pub(super) struct Gathered {
    batcher: Batcher<Submission>,
    linger: Linger,
    /// One writer waits for more at a time: two would take half each.
    turn: Mutex<()>,
}

impl Gathered {
    pub(super) fn new(most: Size, longest_wait: Duration) -> Self {
        Self { batcher: Batcher::new(most), linger: Linger::new(longest_wait), turn: Mutex::new(()) }
    }

    /// Waits for capacity.
    pub(super) async fn room(&self, size: Size) -> Result<Room, Closed> {
        self.batcher.room(size).await
    }

    /// Adds outcomes. Returns them if no more are accepted.
    pub(super) fn push(&self, submission: Submission) -> Result<(), Submission> {
        self.linger.came();
        self.batcher.push(submission)
    }

    /// What has gathered is written now: somebody waits for the answer.
    pub(super) fn hurry(&self) {
        self.linger.hurry();
    }

    /// The next batch. `None`: closed, and nothing is left.
    pub(super) async fn take(&self, batch: Size) -> Option<Vec<Submission>> {
        let _turn = self.turn.lock().await;
        let since = self.batcher.first(Submission::since).await?;
        self.linger.pause(since).await;
        self.batcher.take(batch).await
    }

    /// Accepts no more; what has gathered is still written, now.
    pub(super) fn close(&self) {
        self.batcher.close();
        self.linger.hurry();
    }
}
