//! Tells of ready jobs: the workers of this broker in memory, other brokers by a notification.

use std::time::Duration;

use super::Dispatch;
use crate::{job::Ready, store::Wakeups};

impl Dispatch {
    /// These jobs are committed in `ready`. Other brokers are told of those for which there is no capacity here.
    pub(crate) fn ready(&self, ready: impl Iterator<Item = Ready>) {
        let unserved = self.ready_here(ready);
        if !unserved.is_empty() {
            self.wake.announce(&unserved);
        }
    }

    /// These jobs are ready, and every broker learns of them without us. Returns those for which there is no capacity
    /// here.
    pub(crate) fn ready_here(&self, ready: impl Iterator<Item = Ready>) -> Vec<Ready> {
        let unserved = self.with(|state| state.ready(ready));
        self.work.notify_one();
        unserved
    }

    /// These jobs are ready, and every broker must know, because their ranks may be below those from which brokers
    /// claim.
    pub(crate) fn ready_everywhere(&self, ready: &[Ready]) {
        self.ready_here(ready.iter().copied());
        self.wake.announce(ready);
    }

    /// Acts on the wakeups of a function of the schema.
    pub(crate) fn wakeups(&self, woken: &Wakeups) {
        self.ready(woken.ready.iter().map(|moved| Ready {
            type_id: moved.type_id,
            lowest_rank: moved.lowest_rank,
            jobs: moved.jobs.max(0) as u64,
        }));
        if let Some(us) = woken.due_in_us {
            self.wake.due_in(Duration::from_micros(us.max(0) as u64));
        }
        if woken.limits {
            self.wake.limit_in(Duration::ZERO);
        }
    }

    /// Jobs of limited types have ended: others may start.
    pub(crate) fn limits_freed(&self, mut types: Vec<crate::job::TypeId>) {
        types.sort_unstable();
        types.dedup();
        // No job became ready, so no floor is lowered.
        self.ready(types.into_iter().map(|type_id| Ready::some(type_id, i64::MAX)));
    }
}
