//! Task types with a concurrency or rate limit: a claim computes how many of their jobs it may take, and no job goes
//! direct to a worker.

use std::{collections::HashSet, sync::Arc};

use super::{Dispatch, Unsent};
use crate::{
    job::{Lease, Ready, TypeId},
    store::{Quota, Want},
};

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
            // At most one timer task waits per task type.
            if let Some(retry_in) = quota.retry_in
                && self.waits_for_rate.lock().insert(quota.type_id)
            {
                let (dispatch, type_id) = (self.clone(), quota.type_id);
                tokio::spawn(async move {
                    tokio::time::sleep(retry_in).await;
                    dispatch.waits_for_rate.lock().remove(&type_id);
                    dispatch.state.lock().unlock(type_id);
                    // Passes the highest rank: no job became ready, so claims need not start at a lower rank.
                    dispatch.ready(std::iter::once(Ready { type_id, lowest_rank: i64::MAX, jobs: 0 }));
                });
            }
        }
    }

    /// Ends the leases of jobs that had expired when they were claimed.
    pub(super) fn release_expired(&self, leases: Vec<Lease>) {
        if !leases.is_empty() {
            let _ = self.unsent.send(Unsent::Expired(leases));
        }
    }
}
