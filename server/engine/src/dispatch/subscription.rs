//! The window of a worker as this store knows it: the load that the worker holds here, and whether this store may fill
//! the window.

use std::sync::Arc;

use super::{Load, Recipient, Window, fill_right::FillRight};

/// A window of a session, and the load held in it.
pub(super) struct Subscription {
    pub(super) session: Arc<dyn Recipient>,
    pub(super) window: Window,
    pub(super) held: Load,
    pub(super) stalled: bool,
    /// Bytes of the largest job that the session can ever take.
    pub(super) largest: u64,
    /// Window share of this store; `None` if no other store serves the window.
    pub(super) share: Option<WindowShare>,
}

/// Window share of a store, for a window that several stores fill in turn.
pub(super) struct WindowShare {
    pub(super) right: Arc<FillRight>,
    /// Number of the store within the worker's stream.
    pub(super) store_no: usize,
    pub(super) state: ShareState,
    /// Load that the worker holds in the other stores. It is known while this store holds the right to fill the window.
    pub(super) others: Load,
    /// True if jobs were assigned since this store got the right to fill the window.
    pub(super) used: bool,
    /// True if another store has asked for the right to fill the window.
    pub(super) wanted: bool,
}

/// State of a store with respect to the right to fill a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareState {
    /// The store does not need the right to fill the window now.
    Idle,
    /// The store has decided to ask for the right to fill the window. The event with its request is not handled yet.
    Requesting,
    /// The store is in the queue for the right to fill the window.
    Waiting,
    /// The store holds the right to fill the window.
    Has,
}

impl WindowShare {
    pub(super) fn new(right: Arc<FillRight>, store_no: usize) -> Self {
        Self { right, store_no, state: ShareState::Idle, others: Load::default(), used: false, wanted: false }
    }

    pub(super) fn give_up(&mut self) {
        (self.state, self.others, self.used, self.wanted) = (ShareState::Idle, Load::default(), false, false);
    }
}

impl Subscription {
    pub(super) fn room(&self) -> Load {
        let others = match &self.share {
            None => Load::default(),
            Some(share) if share.state == ShareState::Has => share.others,
            Some(_) => return Load::default(),
        };
        if self.stalled {
            return Load::default();
        }
        Load {
            jobs: self.window.jobs.saturating_sub(self.held.jobs).saturating_sub(others.jobs),
            bytes: self.window.bytes.saturating_sub(self.held.bytes).saturating_sub(others.bytes),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        let room = self.room();
        room.jobs > 0 && room.bytes > 0
    }

    /// Returns the free capacity, if any.
    pub(super) fn open_room(&self) -> Option<Load> {
        self.has_room().then(|| self.room())
    }

    /// Returns the number of jobs that the worker holds in all stores, as far as known. The least loaded session gets
    /// the next job.
    pub(super) fn load(&self) -> u32 {
        self.held.jobs.saturating_add(self.share.as_ref().map_or(0, |share| share.others.jobs))
    }

    /// Returns whether the session could take jobs if it had room.
    pub(super) fn is_willing(&self) -> bool {
        !self.stalled && self.window.jobs > 0
    }

    pub(super) fn is_share_state(&self, state: ShareState) -> bool {
        self.share.as_ref().is_some_and(|share| share.state == state)
    }
}
