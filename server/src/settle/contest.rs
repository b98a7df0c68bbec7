//! Leases that this broker is about to end, and those that it is about to adopt. A lease is never both: a worker that was
//! told that it keeps a lease would lose it again. Between two brokers the owner in the row decides that; here it is the same.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::job::Lease;

/// Shared by all sessions of a broker.
#[derive(Clone, Default)]
pub(super) struct Contest(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    ending: HashMap<Lease, usize>,
    adopting: HashMap<Lease, usize>,
}

/// Leases that are about to be adopted. Until this is dropped, they are not ended here.
pub(crate) struct Adopting {
    contest: Contest,
    /// Those that may be adopted; the others are about to be ended.
    pub(crate) leases: Vec<Lease>,
}

/// Leases that are about to be ended. Until this is dropped, they are not adopted here.
pub(super) struct Ending {
    contest: Contest,
    pub(super) leases: Vec<Lease>,
}

impl Contest {
    /// Without those that are about to be ended. Each lease once.
    pub(super) fn adopt(&self, mut leases: Vec<Lease>) -> Adopting {
        leases.sort_unstable();
        leases.dedup();
        let mut state = self.0.lock();
        leases.retain(|lease| !state.ending.contains_key(lease));
        leases.iter().for_each(|lease| *state.adopting.entry(*lease).or_default() += 1);
        Adopting { contest: self.clone(), leases }
    }

    /// Without those that are about to be adopted: whoever asked for that answers for them.
    pub(super) fn end(&self, mut leases: Vec<Lease>) -> Ending {
        leases.sort_unstable();
        leases.dedup();
        let mut state = self.0.lock();
        leases.retain(|lease| !state.adopting.contains_key(lease));
        leases.iter().for_each(|lease| *state.ending.entry(*lease).or_default() += 1);
        Ending { contest: self.clone(), leases }
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        forget(&mut self.contest.0.lock().adopting, &self.leases);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        forget(&mut self.contest.0.lock().ending, &self.leases);
    }
}

fn forget(counts: &mut HashMap<Lease, usize>, leases: &[Lease]) {
    for lease in leases {
        if let Some(count) = counts.get_mut(lease) {
            *count -= 1;
            if *count == 0 {
                counts.remove(lease);
            }
        }
    }
}
