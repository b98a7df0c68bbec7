//! Reports ready jobs: in memory to the workers of this broker, by notification to other brokers.

use std::time::Duration;

use howdah_core::job::Ready;

use super::Dispatch;
use crate::store::Wakeups;

impl Dispatch {
    /// Reports jobs that are committed as ready. Notifies other brokers of jobs for which this broker has no capacity.
    pub(crate) fn ready(&self, ready: impl Iterator<Item = Ready>) {
        let unserved = self.ready_here(ready);
        if !unserved.is_empty() {
            self.wake.announce(&unserved);
        }
    }

    /// Reports ready jobs to the workers of this broker only, because other brokers find the jobs without a
    /// notification. Returns the entries with more jobs than the free capacity of this broker.
    pub(crate) fn ready_here(&self, ready: impl Iterator<Item = Ready>) -> Vec<Ready> {
        let unserved = self.with(|state| state.ready(ready));
        self.work.notify_one();
        unserved
    }

    /// Reports ready jobs to every broker, because their ranks may be below the floors at which brokers start their
    /// claims.
    pub(crate) fn ready_everywhere(&self, ready: &[Ready]) {
        self.ready_here(ready.iter().copied());
        self.wake.announce(ready);
    }

    /// Acts on the wake-ups that an SQL function returned: ready jobs, the time of the next due job, and freed limits.
    pub(crate) fn wakeups(&self, woken: &Wakeups) {
        self.ready(woken.ready.iter().copied());
        if let Some(us) = woken.due_in_us {
            self.wake.due_in(Duration::from_micros(us.max(0) as u64));
        }
        if woken.limits {
            self.wake.limit_in(Duration::ZERO);
        }
    }

    /// Reports that jobs of limited task types have ended, so that other jobs may start.
    pub(crate) fn limits_freed(&self, mut types: Vec<howdah_core::job::TypeId>) {
        types.sort_unstable();
        types.dedup();
        // Passes the highest rank: no job became ready, so claims need not start at a lower rank.
        self.ready(types.into_iter().map(|type_id| Ready::some(type_id, i64::MAX)));
    }
}
