//! Outcomes that wait for a writer.

use std::time::{Duration, Instant};

use super::Submitter;
use crate::{
    batch::{Room, Weigh},
    job::{SettleStatus, Settlement},
};

/// Outcomes that were submitted together and are answered together.
pub(super) struct Submission {
    settlements: Vec<Settlement>,
    bytes: usize,
    since: Instant,
    submitter: Box<dyn Submitter>,
    /// Memory, held until the outcomes are written.
    room: Option<Room>,
}

impl Weigh for Submission {
    fn items(&self) -> usize {
        self.settlements.len()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Submission {
    pub(super) fn new(settlements: Vec<Settlement>, room: Option<Room>, submitter: Box<dyn Submitter>) -> Self {
        let bytes = settlements.iter().map(|s| s.outcome.weight()).sum();
        Self { settlements, bytes, since: Instant::now(), submitter, room }
    }

    pub(super) fn settlements(&self) -> &[Settlement] {
        &self.settlements
    }

    /// How long it has waited.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Answers with the next statuses, one for each outcome.
    pub(super) fn settled(self, statuses: &mut impl Iterator<Item = SettleStatus>) {
        drop(self.room);
        self.submitter.settled(self.settlements.iter().map(|s| s.lease).zip(statuses).collect());
    }

    /// Answers UNAVAILABLE: nothing was written.
    pub(super) fn unavailable(self) {
        self.settled(&mut std::iter::repeat(SettleStatus::Unavailable));
    }
}
