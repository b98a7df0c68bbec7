//! Task types with a concurrency or rate limit: a claim computes how many of their jobs it may take, and no job goes
//! direct to a worker.

use std::{collections::HashSet, mem, sync::Arc, time::Duration};

use howdah_core::job::{Lease, Ready, TypeId};
use tokio::time::Instant;

use super::{Dispatch, Unsent};
use crate::store::{Quota, Want};

/// Longest time after which a type that a limit holds back is claimed again.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

impl Dispatch {
    /// Replaces the set of task types that have a limit.
    pub(crate) fn set_limited(&self, types: HashSet<TypeId>) {
        if **self.limited.load() != types {
            self.limited.store(types.into());
        }
    }

    pub(crate) fn is_limited(&self, type_id: TypeId) -> bool {
        let limited = self.limited.load();
        !limited.is_empty() && limited.contains(&type_id)
    }

    /// Returns the task types of a claim that have a limit.
    pub(super) fn limited_among(&self, wants: &[Want]) -> HashSet<TypeId> {
        wants.iter().map(|want| want.type_id).filter(|id| self.is_limited(*id)).collect()
    }

    /// Schedules another claim for jobs that a limit holds back: when a rate limit allows more, or shortly after
    /// another transaction had locked the limit. A concurrency limit needs no timer, because the end of a job triggers
    /// the claim.
    pub(super) fn wait_for_limits(self: &Arc<Self>, held_back: &[Quota]) {
        for quota in held_back {
            let Some(retry_in) = quota.retry_in else { continue };
            let (type_id, at) = (quota.type_id, Instant::now() + retry_in.min(LONGEST_WAIT));
            {
                // Only the earliest timer of a task type counts: a brake may wait for long, and a locked limit only briefly.
                let mut waits = self.waits_for_rate.lock();
                if waits.get(&type_id).is_some_and(|earlier| *earlier <= at) {
                    continue;
                }
                waits.insert(type_id, at);
            }
            tokio::spawn(self.clone().claim_again(type_id, at));
        }
    }

    /// Claims jobs of the type at this time, unless an earlier time has taken its place.
    async fn claim_again(self: Arc<Self>, type_id: TypeId, at: Instant) {
        tokio::time::sleep_until(at).await;
        {
            let mut waits = self.waits_for_rate.lock();
            if waits.get(&type_id) != Some(&at) {
                return;
            }
            waits.remove(&type_id);
        }
        self.end_limit_wait(type_id);
    }

    /// Claims jobs of all types that wait for their limit, because tests have advanced the clock.
    pub(crate) fn end_limit_waits(&self) {
        let waits = mem::take(&mut *self.waits_for_rate.lock());
        waits.into_keys().for_each(|type_id| self.end_limit_wait(type_id));
    }

    fn end_limit_wait(&self, type_id: TypeId) {
        self.state.lock().unlock(type_id);
        // Passes the highest rank: no job became ready, so claims need not start at a lower rank.
        self.ready(std::iter::once(Ready { type_id, lowest_rank: i64::MAX, jobs: 0 }));
    }

    /// Ends the leases of jobs that had expired when they were claimed.
    pub(super) fn release_expired(&self, leases: Vec<Lease>) {
        if !leases.is_empty() {
            let _ = self.unsent.send(Unsent::Expired(leases));
        }
    }
}
