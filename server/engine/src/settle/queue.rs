//! Outcomes that wait for a writer, and their queue with the commit delay.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::job::{SettleStatus, Settlement};
use tokio::sync::Mutex;

use super::{Submitter, commit_delay::CommitDelay, locked::Written};
use crate::batch::{Batcher, Capacity, Closed, Size, Weigh};

/// Outcomes that were submitted together.
pub(super) struct Submission {
    settlements: Vec<Settlement>,
    bytes: usize,
    since: Instant,
    submitter: Arc<dyn Submitter>,
    /// Reserved queue capacity, held until the outcomes are written.
    room: Option<Arc<Capacity>>,
}

/// A single outcome whose job another transaction has locked.
pub(super) struct LockedOutcome {
    pub(super) settlement: Settlement,
    since: Instant,
    until: Instant,
    submitter: Arc<dyn Submitter>,
    /// Holders of the lock, if known.
    pub(super) holders: Option<String>,
    _room: Option<Arc<Capacity>>,
}

impl Weigh for Submission {
    fn items(&self) -> usize {
        self.settlements.len()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Weigh for LockedOutcome {
    fn items(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.settlement.outcome.weight()
    }
}

impl Submission {
    pub(super) fn new(settlements: Vec<Settlement>, room: Option<Capacity>, submitter: Arc<dyn Submitter>) -> Self {
        let bytes = settlements.iter().map(|s| s.outcome.weight()).sum();
        Self { settlements, bytes, since: Instant::now(), submitter, room: room.map(Arc::new) }
    }

    pub(super) fn settlements(&self) -> &[Settlement] {
        &self.settlements
    }

    /// Returns the time of the submission.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Returns the time since the outcome was submitted.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Answers the outcomes with their statuses. Returns the outcomes that have no status yet, for the side lane.
    pub(super) fn settled(
        self,
        statuses: &mut impl Iterator<Item = Written>,
        max_wait: Duration,
    ) -> Vec<LockedOutcome> {
        let Self { settlements, since, submitter, room, .. } = self;
        let mut locked = Vec::new();
        let mut answers = Vec::with_capacity(settlements.len());
        for (settlement, status) in settlements.into_iter().zip(statuses) {
            match status {
                Written::As(status) => answers.push((settlement.lease, status)),
                Written::Locked | Written::Alone => {
                    let (submitter, room, until) = (submitter.clone(), room.clone(), since + max_wait);
                    locked.push(LockedOutcome { settlement, since, until, submitter, holders: None, _room: room });
                }
            }
        }
        drop(room);
        if !answers.is_empty() {
            submitter.settled(answers);
        }
        locked
    }

    /// Answers all outcomes with UNAVAILABLE, because nothing was written.
    pub(super) fn unavailable(self) {
        self.settled(&mut std::iter::repeat(Written::As(SettleStatus::Unavailable)), Duration::ZERO);
    }
}

impl LockedOutcome {
    /// Returns the time since the outcome was submitted.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    pub(super) fn is_late(&self) -> bool {
        self.until <= Instant::now()
    }

    pub(super) fn settled(self, status: SettleStatus) {
        self.submitter.settled(vec![(self.settlement.lease, status)]);
    }
}

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
