//! A store's share of a stream that several stores serve. The worker has a session with the same id in each store.

use std::sync::Arc;

use howdah_core::job::TaskTypeName;

use super::{SessionId, Sessions};
use crate::{
    access::Caller,
    dispatch::{FillRight, FillRights},
};

/// Data that a session in one store shares with the worker's sessions in the other stores.
#[derive(Clone)]
pub struct StoreShare {
    /// Position of the store in the stream's list of stores.
    pub store_no: usize,
    /// Rights to fill the worker's windows (window shares). One store at a time has the right to fill a window.
    pub rights: Arc<FillRights>,
    /// Generation in the session id of the next `Welcome`, the same in all stores.
    pub next_generation: u32,
}

impl StoreShare {
    /// Returns the right to fill the window of a task type, and the number of this store.
    pub(super) fn right(&self, task_type: &TaskTypeName) -> (Arc<FillRight>, usize) {
        (self.rights.right(task_type), self.store_no)
    }

    /// Reports that the worker's leases in this store are counted in their windows. Until then they count in every
    /// window.
    pub(super) fn attached(&self) {
        self.rights.known(self.store_no);
    }
}

impl Sessions {
    /// Returns the generation of the caller's session with this id; 0 if there is no such session.
    pub fn generation_of(&self, caller: &Caller, id: &SessionId) -> u32 {
        self.find(caller, id).map_or(0, |session| session.generation())
    }
}
