//! Guard that keeps a broker from ending a lease and adopting it at the same time. Otherwise a worker could lose a
//! lease right after it was told that it keeps the lease. Between two brokers, the owner in the lease's row decides;
//! within one broker, this guard does.

use std::{collections::HashMap, sync::Arc};

use howdah_core::job::Lease;
use parking_lot::Mutex;

/// Guard of leases, shared by all sessions of a broker.
#[derive(Clone, Default)]
pub(super) struct LeaseGuard(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    ending: HashMap<Lease, usize>,
    adopting: HashMap<Lease, usize>,
}

/// Leases that are being adopted. They are not ended at this broker until this guard is dropped.
pub(crate) struct Adopting {
    guard: LeaseGuard,
    /// Leases that may be adopted. The requested leases that are missing here are being ended.
    pub(crate) leases: Vec<Lease>,
}

/// Leases that are being ended. They are not adopted at this broker until this guard is dropped.
pub(super) struct Ending {
    guard: LeaseGuard,
    pub(super) leases: Vec<Lease>,
}

impl LeaseGuard {
    /// Guards leases for adoption. Leaves out duplicates, and leases that are being ended.
    pub(super) fn adopt(&self, mut leases: Vec<Lease>) -> Adopting {
        leases.sort_unstable();
        leases.dedup();
        let mut state = self.0.lock();
        leases.retain(|lease| !state.ending.contains_key(lease));
        leases.iter().for_each(|lease| *state.adopting.entry(*lease).or_default() += 1);
        Adopting { guard: self.clone(), leases }
    }

    /// Guards leases that are to be ended. Leaves out duplicates, and leases that are being adopted: the adopting task
    /// is responsible for those.
    pub(super) fn end(&self, mut leases: Vec<Lease>) -> Ending {
        leases.sort_unstable();
        leases.dedup();
        let mut state = self.0.lock();
        leases.retain(|lease| !state.adopting.contains_key(lease));
        leases.iter().for_each(|lease| *state.ending.entry(*lease).or_default() += 1);
        Ending { guard: self.clone(), leases }
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        forget(&mut self.guard.0.lock().adopting, &self.leases);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        forget(&mut self.guard.0.lock().ending, &self.leases);
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
