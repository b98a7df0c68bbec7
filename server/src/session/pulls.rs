//! Which types programs without a stream have called for (`PullJobs`): what tells "no worker" from "nobody calls just now".
//! Brokers note the times in a table, so that each knows of the calls at the others.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{sync::OwnedMutexGuard, time::Instant};

use crate::job::TypeId;

/// The calls of this broker that are not in the table yet, and those that wait for jobs. At most the types that exist.
#[derive(Clone, Default)]
pub(crate) struct Pulls {
    calls: Arc<Mutex<HashMap<TypeId, Calls>>>,
    place: Arc<tokio::sync::Mutex<()>>,
}

struct Calls {
    /// Calls that wait.
    waiting: usize,
    /// When one has begun or ended last.
    last: Instant,
}

/// A call, until it is dropped.
pub(crate) struct Pulling {
    pulls: Pulls,
    types: Vec<TypeId>,
}

impl Pulls {
    /// A program calls for jobs of these types.
    pub(crate) fn begin(&self, types: &[TypeId]) -> Pulling {
        let (mut calls, now) = (self.calls.lock(), Instant::now());
        for type_id in types {
            let calls = calls.entry(*type_id).or_insert(Calls { waiting: 0, last: now });
            calls.waiting += 1;
            calls.last = now;
        }
        Pulling { pulls: self.clone(), types: types.to_vec() }
    }

    /// The place of the one call that waits for long if Postgres is slow; `None`: it is taken.
    pub(crate) fn place(&self) -> Option<OwnedMutexGuard<()>> {
        self.place.clone().try_lock_owned().ok()
    }

    /// Whether a call of this broker waits for jobs of this type.
    pub(crate) fn is_waiting(&self, type_id: TypeId) -> bool {
        self.calls.lock().get(&type_id).is_some_and(|calls| calls.waiting > 0)
    }

    /// When the last call was, as far as it is not in the table.
    pub(crate) fn last(&self, type_id: TypeId) -> Option<Instant> {
        self.calls.lock().get(&type_id).map(|calls| calls.last)
    }

    /// What is to be noted, and when that was.
    pub(crate) fn unnoted(&self) -> Vec<(TypeId, Instant)> {
        let now = Instant::now();
        let last = |calls: &Calls| if calls.waiting > 0 { now } else { calls.last };
        self.calls.lock().iter().map(|(type_id, calls)| (*type_id, last(calls))).collect()
    }

    /// These are in the table.
    pub(crate) fn noted(&self, types: &[(TypeId, Instant)]) {
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
    fn a_call_is_noted_until_the_table_has_its_end() {
        let pulls = Pulls::default();
        let types = |pulls: &Pulls| pulls.unnoted().iter().map(|(type_id, _)| *type_id).collect::<Vec<_>>();
        let call = pulls.begin(&[1]);
        assert!(pulls.is_waiting(1) && !pulls.is_waiting(2));
        pulls.noted(&pulls.unnoted());
        assert_eq!(types(&pulls), [1], "it still waits");
        let before = pulls.unnoted();
        drop(call);
        pulls.noted(&before);
        assert_eq!((types(&pulls), pulls.is_waiting(1)), (vec![1], false), "it has ended since");
        pulls.noted(&pulls.unnoted());
        assert!(types(&pulls).is_empty() && pulls.last(1).is_none());
    }
}
