//! One engine's part of a stream that several engines serve: in each, the worker has a session of the same id.

use std::sync::Arc;

use super::{SessionId, Sessions};
use crate::{
    access::Caller,
    dispatch::{Turn, Turns},
    job::TaskTypeName,
};

/// What a session of one engine knows of the others.
#[derive(Clone)]
pub(crate) struct Part {
    /// The engine's number within the stream.
    pub(crate) engine: usize,
    /// Who deals to the worker's windows.
    pub(crate) turns: Arc<Turns>,
    /// The turn of the id that the Welcome has, the same in all engines.
    pub(crate) next_turn: u32,
}

impl Part {
    /// This engine's part in the turn of a type.
    pub(super) fn turn(&self, task_type: &TaskTypeName) -> (Arc<Turn>, usize) {
        (self.turns.of(task_type), self.engine)
    }

    /// The leases that the worker has here are known now.
    pub(super) fn attached(&self) {
        self.turns.known(self.engine);
    }
}

impl Sessions {
    /// The turn of the caller's session of this id here; 0: there is none.
    pub(crate) fn turn_of(&self, caller: &Caller, id: &SessionId) -> u32 {
        self.find(caller, id).map_or(0, |session| session.turn())
    }
}
