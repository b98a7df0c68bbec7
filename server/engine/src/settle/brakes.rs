//! Counts failed attempts in a row for the brakes of task types. The counts are in the database, so that a brake holds on
//! all brokers together. A broker collects ended attempts for a few milliseconds, then writes them in one statement.
//! Settles do not wait for this write. Task types without a brake cost one look-up in memory.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use howdah_core::job::{Ready, TypeId};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    dispatch::Dispatch,
    registry::Registry,
    store::{Action, BrakeChange, Nacked, Store},
};

/// Minimum time between two writes.
const PACE: Duration = Duration::from_millis(10);
/// Time after which types that could not be written are tried again.
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
    /// Types that could not be written, because another transaction has locked their brake or Postgres refused the write. They
    /// are held back until the next retry, so that they do not delay the others.
    held_back: HashSet<TypeId>,
    /// Whether a task writes them.
    is_writing: bool,
}

impl Unwritten {
    /// Takes all types that are not held back, for a write. Returns `None` if nothing is left to write.
    fn take(&mut self) -> Option<HashMap<TypeId, Ended>> {
        self.is_writing = !self.by_type.is_empty();
        self.is_writing.then(|| self.by_type.extract_if(|id, _| !self.held_back.contains(id)).collect())
    }

    /// Queues ended attempts again after a failed write. They count as earlier than attempts that have ended since.
    fn put_back(&mut self, type_id: TypeId, earlier: Ended) {
        let later = self.by_type.entry(type_id).or_default();
        *later = earlier.then(*later);
        self.held_back.insert(type_id);
    }
}

/// Counter of failed attempts.
pub(super) struct Brakes {
    store: Store,
    registry: Arc<Registry>,
    dispatch: Arc<Dispatch>,
    unwritten: Mutex<Unwritten>,
    /// Notified when an attempt has ended.
    counted: Notify,
    /// Cancelled when the broker stops.
    closed: CancellationToken,
}

impl Brakes {
    pub(super) fn new(store: Store, registry: Arc<Registry>, dispatch: Arc<Dispatch>) -> Self {
        let (unwritten, counted, closed) = (Mutex::default(), Notify::new(), CancellationToken::new());
        Self { store, registry, dispatch, unwritten, counted, closed }
    }

    /// Counts attempts that have succeeded.
    pub(super) fn succeeded(self: &Arc<Self>, types: &[TypeId]) {
        self.count(types.iter().copied(), Ended { succeeded: true, failed: 0 });
    }

    /// Counts failed attempts of leases with the mark `limited`. Attempts that were lost with their worker or broker do
    /// not count, because the task type did not cause their failure.
    pub(super) fn failed(self: &Arc<Self>, nacked: &[Nacked]) {
        let failed = nacked.iter().filter(|nacked| match nacked.action {
            Action::Retry | Action::Dead | Action::Fallback | Action::Superseded => nacked.limited,
            Action::Snooze | Action::Release | Action::Lost => false,
        });
        self.count(failed.map(|nacked| nacked.left_type), Ended { succeeded: false, failed: 1 });
    }

    /// Ends the retries, because the broker stops. Attempts that end from now on are written once, without a retry.
    pub(super) fn close(&self) {
        self.closed.cancel();
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
        self.counted.notify_one();
    }

    /// Writes until nothing is left. Retries failed writes; otherwise the success of a trial might not end the brake.
    async fn write_all(self: Arc<Self>) {
        let mut retry_at = Instant::now();
        loop {
            if retry_at <= Instant::now() {
                self.unwritten.lock().held_back.clear();
                retry_at = Instant::now() + RETRY;
            }
            let Some(by_type) = self.unwritten.lock().take() else { return };
            if !by_type.is_empty() {
                self.write(by_type).await;
                tokio::time::sleep(PACE).await;
                continue;
            }
            tokio::select! {
                () = self.counted.notified() => {}
                () = tokio::time::sleep_until(retry_at) => {}
                () = self.closed.cancelled() => {
                    *self.unwritten.lock() = Unwritten::default();
                    return;
                }
            }
        }
    }

    /// Writes ended attempts, and puts back those that could not be written.
    async fn write(&self, by_type: HashMap<TypeId, Ended>) {
        let types: Vec<TypeId> = by_type.keys().copied().collect();
        let succeeded: Vec<bool> = by_type.values().map(|ended| ended.succeeded).collect();
        let failed: Vec<i64> = by_type.values().map(|ended| ended.failed).collect();
        let left = match self.store.count_for_brakes(&types, &succeeded, &failed).await {
            Ok((changes, locked)) => {
                changes.into_iter().for_each(|change| self.report(change));
                locked
            }
            Err(error) => {
                self.store.log_failure("counting failed attempts in a row", &error);
                types
            }
        };
        let mut unwritten = self.unwritten.lock();
        for (type_id, ended) in left.iter().filter_map(|id| by_type.get_key_value(id)) {
            unwritten.put_back(*type_id, *ended);
        }
    }

    /// Logs the start or the end of a brake. After its end, all brokers claim at once.
    fn report(&self, change: BrakeChange) {
        let BrakeChange { type_id, failures, since, is_braked } = change;
        let task_type = self.registry.name(type_id).map_or_else(|| type_id.to_string(), |name| name.to_string());
        if is_braked {
            tracing::warn!(
                task_type,
                failures,
                "the brake slows claims of the task type after failed attempts in a row"
            );
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
    use std::{sync::Arc, time::Duration};

    use tokio::sync::mpsc;

    use super::{Brakes, Ended, Unwritten};
    use crate::{
        dispatch::{Dispatch, UnsentMemory},
        metrics::Metrics,
        registry::Registry,
        store::Store,
        traces::Traces,
        wake::Wake,
    };
    use howdah_core::config::Config;

    #[tokio::test]
    async fn retries_end_when_the_broker_stops() {
        // Nothing listens on this port.
        let config = Config::new("postgres://127.0.0.1:1/none");
        let store = Store::new(&config).unwrap();
        let registry = Arc::new(Registry::new(store.clone(), &config));
        let unsent = (mpsc::unbounded_channel().0, UnsentMemory::new(1 << 20));
        let metrics = Arc::new(Metrics::new());
        let dispatch = Arc::new(Dispatch::new(1, Wake::new(false), unsent, Traces::default(), metrics));
        let brakes = Arc::new(Brakes::new(store, registry, dispatch));
        brakes.unwritten.lock().by_type.insert(1, Ended { succeeded: true, failed: 0 });
        brakes.close();
        tokio::time::timeout(Duration::from_mins(1), brakes.clone().write_all()).await.expect("the end of the retries");
        assert!(brakes.unwritten.lock().by_type.is_empty());
    }

    #[test]
    fn a_type_that_could_not_be_written_is_held_back_in_order_while_others_are_written() {
        let (failure, success) = (Ended { succeeded: false, failed: 1 }, Ended { succeeded: true, failed: 0 });
        let mut unwritten = Unwritten::default();
        assert!(unwritten.take().is_none());
        unwritten.by_type.insert(1, success);
        let batch = unwritten.take().expect("a batch");
        unwritten.by_type.insert(1, failure);
        unwritten.by_type.insert(2, failure);
        unwritten.put_back(1, batch[&1]);
        assert_eq!(unwritten.take().expect("a batch").into_keys().collect::<Vec<_>>(), [2]);
        assert!(unwritten.take().expect("type 1 is left").is_empty());
        unwritten.held_back.clear();
        assert_eq!(unwritten.take().expect("a batch")[&1], Ended { succeeded: true, failed: 1 });
        assert!(unwritten.take().is_none() && !unwritten.is_writing);
    }

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
