//! Times of the latest `PullJobs` calls by task type. They distinguish "no worker" from "no call at the moment".
//! Brokers write the times to a table, so that each broker knows of calls at the other brokers.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use howdah_core::job::TypeId;
use parking_lot::Mutex;
use tokio::{sync::OwnedMutexGuard, time::Instant};

/// `PullJobs` calls at this broker that wait for jobs, or whose end is not in the table yet. There is at most one entry
/// per task type.
#[derive(Clone, Default)]
pub struct Pulls {
    calls: Arc<Mutex<HashMap<TypeId, Calls>>>,
    late_wait_permit: Arc<tokio::sync::Mutex<()>>,
}

struct Calls {
    /// Number of `PullJobs` calls that wait for jobs.
    waiting: usize,
    /// Time of the latest start or end of a `PullJobs` call.
    last: Instant,
}

/// A `PullJobs` call in progress. Its end is recorded on drop.
pub struct Pulling {
    pulls: Pulls,
    types: Vec<TypeId>,
}

impl Pulls {
    /// Records the start of a `PullJobs` call for these task types.
    pub fn begin(&self, types: &[TypeId]) -> Pulling {
        let (mut calls, now) = (self.calls.lock(), Instant::now());
        for type_id in types {
            let calls = calls.entry(*type_id).or_insert(Calls { waiting: 0, last: now });
            calls.waiting += 1;
            calls.last = now;
        }
        Pulling { pulls: self.clone(), types: types.to_vec() }
    }

    /// Takes the permit with which a `PullJobs` call waits for a slow store for longer than its caller asked for. Only
    /// one call has the permit at a time; returns `None` to the others.
    pub fn late_wait_permit(&self) -> Option<OwnedMutexGuard<()>> {
        self.late_wait_permit.clone().try_lock_owned().ok()
    }

    /// Returns whether a `PullJobs` call at this broker waits for jobs of this type.
    pub(crate) fn is_waiting(&self, type_id: TypeId) -> bool {
        self.calls.lock().get(&type_id).is_some_and(|calls| calls.waiting > 0)
    }

    /// Returns the time of the latest `PullJobs` call that is not in the table yet.
    pub(crate) fn last(&self, type_id: TypeId) -> Option<Instant> {
        self.calls.lock().get(&type_id).map(|calls| calls.last)
    }

    /// Returns the task types to write to the table, with the times of their latest `PullJobs` calls.
    pub(crate) fn unwritten(&self) -> Vec<(TypeId, Instant)> {
        let now = Instant::now();
        let last = |calls: &Calls| if calls.waiting > 0 { now } else { calls.last };
        self.calls.lock().iter().map(|(type_id, calls)| (*type_id, last(calls))).collect()
    }

    /// Removes entries that were written to the table, unless a later call has come.
    pub(crate) fn written(&self, types: &[(TypeId, Instant)]) {
        let mut calls = self.calls.lock();
        for (type_id, last) in types {
            if let Entry::Occupied(entry) = calls.entry(*type_id)
                && entry.get().waiting == 0
                && entry.get().last <= *last
            {
                entry.remove();
            }
        }
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        let (mut calls, now) = (self.pulls.calls.lock(), Instant::now());
        for type_id in &self.types {
            if let Some(calls) = calls.get_mut(type_id) {
                calls.waiting -= 1;
                calls.last = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_kept_until_its_end_has_been_written_to_the_table() {
        let pulls = Pulls::default();
        let types = |pulls: &Pulls| pulls.unwritten().iter().map(|(type_id, _)| *type_id).collect::<Vec<_>>();
        let call = pulls.begin(&[1]);
        assert!(pulls.is_waiting(1) && !pulls.is_waiting(2));
        pulls.written(&pulls.unwritten());
        assert_eq!(types(&pulls), [1], "it still waits");
        let before = pulls.unwritten();
        drop(call);
        pulls.written(&before);
        assert_eq!((types(&pulls), pulls.is_waiting(1)), (vec![1], false), "it has ended since");
        pulls.written(&pulls.unwritten());
        assert!(types(&pulls).is_empty() && pulls.last(1).is_none());
    }
}
