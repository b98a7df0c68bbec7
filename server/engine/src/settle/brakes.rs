//! Counts failed attempts in a row for the brakes of task types. The counts are in the database, so that a brake holds on
//! all brokers together. A broker gathers the ended attempts of a few milliseconds, and then writes them: settles do not
//! wait for it. Task types without a brake cost one look-up in memory.

use std::{collections::HashMap, sync::Arc, time::Duration};

use howdah_core::job::{Ready, TypeId};
use parking_lot::Mutex;

use crate::{
    dispatch::Dispatch,
    registry::Registry,
    store::{Action, BrakeChange, Nacked, Store, StoreError},
};

/// Minimum time between two writes.
const PACE: Duration = Duration::from_millis(10);
/// Pause before a failed write is repeated.
const RETRY: Duration = Duration::from_secs(1);

/// Ended attempts of a task type: whether one succeeded, and the number of attempts that failed after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ended {
    succeeded: bool,
    failed: i64,
}

impl Ended {
    fn then(self, later: Self) -> Self {
        if later.succeeded { later } else { Self { failed: self.failed + later.failed, ..self } }
    }
}

/// Ended attempts that are not written yet.
#[derive(Default)]
struct Unwritten {
    by_type: HashMap<TypeId, Ended>,
    /// Whether a task writes them.
    is_writing: bool,
}

/// Counter of failed attempts.
pub(super) struct Brakes {
    store: Store,
    registry: Arc<Registry>,
    dispatch: Arc<Dispatch>,
    unwritten: Mutex<Unwritten>,
}

impl Brakes {
    pub(super) fn new(store: Store, registry: Arc<Registry>, dispatch: Arc<Dispatch>) -> Self {
        Self { store, registry, dispatch, unwritten: Mutex::default() }
    }

    /// Counts attempts that have succeeded.
    pub(super) fn succeeded(self: &Arc<Self>, types: &[TypeId]) {
        self.count(types.iter().copied(), Ended { succeeded: true, failed: 0 });
    }

    /// Counts attempts that have failed. An attempt that was lost with its worker or its broker says nothing about the
    /// failures of the task type.
    pub(super) fn failed(self: &Arc<Self>, nacked: &[Nacked]) {
        let failed = nacked.iter().filter(|nacked| match nacked.action {
            Action::Retry | Action::Dead | Action::Fallback | Action::Superseded => true,
            Action::Snooze | Action::Release | Action::Lost => false,
        });
        self.count(failed.map(|nacked| nacked.left_type), Ended { succeeded: false, failed: 1 });
    }

    fn count(self: &Arc<Self>, types: impl Iterator<Item = TypeId>, ended: Ended) {
        let types = self.registry.braking(types);
        if types.is_empty() {
            return;
        }
        let mut unwritten = self.unwritten.lock();
        for type_id in types {
            let earlier = unwritten.by_type.entry(type_id).or_default();
            *earlier = earlier.then(ended);
        }
        if !std::mem::replace(&mut unwritten.is_writing, true) {
            tokio::spawn(self.clone().write_all());
        }
    }

    /// Writes until nothing is left. Retries after an error, because the success of a trial must end the brake.
    async fn write_all(self: Arc<Self>) {
        loop {
            let by_type = {
                let mut unwritten = self.unwritten.lock();
                unwritten.is_writing = !unwritten.by_type.is_empty();
                std::mem::take(&mut unwritten.by_type)
            };
            if by_type.is_empty() {
                return;
            }
            match self.write(&by_type).await {
                Ok(changes) => changes.into_iter().for_each(|change| self.report(change)),
                Err(error) => {
                    self.store.log_failure("counting failed attempts in a row", &error);
                    self.put_back(by_type);
                    tokio::time::sleep(RETRY).await;
                }
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Queues ended attempts again that could not be written, before those that have ended since.
    fn put_back(&self, by_type: HashMap<TypeId, Ended>) {
        let mut unwritten = self.unwritten.lock();
        for (type_id, earlier) in by_type {
            let later = unwritten.by_type.entry(type_id).or_default();
            *later = earlier.then(*later);
        }
    }

    async fn write(&self, by_type: &HashMap<TypeId, Ended>) -> Result<Vec<BrakeChange>, StoreError> {
        let types: Vec<TypeId> = by_type.keys().copied().collect();
        let succeeded: Vec<bool> = by_type.values().map(|ended| ended.succeeded).collect();
        let failed: Vec<i64> = by_type.values().map(|ended| ended.failed).collect();
        self.store.count_for_brakes(&types, &succeeded, &failed).await
    }

    /// Logs the start or the end of a brake. After its end, all brokers claim at once.
    fn report(&self, change: BrakeChange) {
        let BrakeChange { type_id, failures, since, is_braked } = change;
        let task_type = self.registry.name(type_id).map_or_else(|| type_id.to_string(), |name| name.to_string());
        if is_braked {
            tracing::warn!(task_type, failures, "the task type is braked after failed attempts in a row");
            return;
        }
        let seconds = since.elapsed().unwrap_or_default().as_secs();
        tracing::info!(task_type, failures, seconds, "the brake has ended, because an attempt succeeded");
        // The highest rank: no job became ready, so claims need not start at a lower rank.
        self.dispatch.ready_everywhere(&[Ready::some(type_id, i64::MAX)]);
    }
}

#[cfg(test)]
mod tests {
    use super::Ended;

    #[test]
    fn a_success_forgets_the_failures_before_it_and_keeps_those_after_it() {
        let failure = Ended { succeeded: false, failed: 1 };
        let success = Ended { succeeded: true, failed: 0 };
        assert_eq!(failure.then(failure), Ended { succeeded: false, failed: 2 });
        assert_eq!(failure.then(success), success);
        assert_eq!(failure.then(success).then(failure), Ended { succeeded: true, failed: 1 });
        assert_eq!(Ended::default().then(failure), failure);
    }
}
