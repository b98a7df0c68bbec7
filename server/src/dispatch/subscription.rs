//! The window of a worker, as this engine knows it: what the worker holds here, and whether this engine may fill it.

use std::sync::Arc;

use super::{Load, Recipient, Window, turn::Turn};

/// A window of a session, and the jobs it holds.
pub(super) struct Subscription {
    pub(super) session: Arc<dyn Recipient>,
    pub(super) window: Window,
    pub(super) held: Load,
    pub(super) stalled: bool,
    /// The largest job that it can ever take.
    pub(super) largest: u64,
    /// If other engines deal to the same window.
    pub(super) seat: Option<Seat>,
}

/// An engine's place at a window that several engines deal to, in turn.
pub(super) struct Seat {
    pub(super) turn: Arc<Turn>,
    /// The engine's number within the worker's stream.
    pub(super) engine: usize,
    pub(super) stand: Stand,
    /// What the worker holds in the other engines, while this one has the turn.
    pub(super) others: Load,
    /// It has got jobs since this engine has the turn.
    pub(super) used: bool,
    /// Another engine has asked for the turn.
    pub(super) wanted: bool,
}

/// How an engine stands to the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// It needs no turn now.
    Idle,
    /// It is about to ask.
    Asking,
    /// It has asked, and waits.
    Waiting,
    /// It has the turn.
    Has,
}

impl Seat {
    pub(super) fn new(turn: Arc<Turn>, engine: usize) -> Self {
        Self { turn, engine, stand: Stand::Idle, others: Load::default(), used: false, wanted: false }
    }

    /// Has the turn no more.
    pub(super) fn stand_back(&mut self) {
        (self.stand, self.others, self.used, self.wanted) = (Stand::Idle, Load::default(), false, false);
    }
}

impl Subscription {
    pub(super) fn room(&self) -> Load {
        let others = match &self.seat {
            None => Load::default(),
            Some(seat) if seat.stand == Stand::Has => seat.others,
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

    /// Its room, if it has some.
    pub(super) fn open_room(&self) -> Option<Load> {
        self.has_room().then(|| self.room())
    }

    /// What it holds in all engines, as far as that is known: the least loaded gets the next job.
    pub(super) fn load(&self) -> u32 {
        self.held.jobs.saturating_add(self.seat.as_ref().map_or(0, |seat| seat.others.jobs))
    }

    /// Whether it could take jobs if it had room.
    pub(super) fn is_willing(&self) -> bool {
        !self.stalled && self.window.jobs > 0
    }

    pub(super) fn stands(&self, stand: Stand) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.stand == stand)
    }
}
