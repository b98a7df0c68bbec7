//! Outcomes that wait for a writer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::job::{SettleStatus, Settlement};

use super::{Submitter, locked::Written};
use crate::batch::{Capacity, Weigh};

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
