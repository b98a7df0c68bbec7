//! Task types with a limit: a claim computes how many jobs it may take, and no job goes direct to a worker.

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

    /// Returns whether a task type has a limit.
    pub(crate) fn is_limited(&self, type_id: TypeId) -> bool {
        let limited = self.limited.load();
        !limited.is_empty() && limited.contains(&type_id)
    }

    /// Returns the task types of a claim that have a limit.
    pub(super) fn limited_among(&self, wants: &[Want]) -> HashSet<TypeId> {
        wants.iter().map(|want| want.type_id).filter(|id| self.is_limited(*id)).collect()
    }

    /// Schedules another claim for jobs that a limit holds back. A rate limit is retried when it allows more, and a
    /// limit that another transaction has locked after a short time. Other limits need no timer: the end of a job
    /// triggers the claim.
    pub(super) fn wait_for_limits(self: &Arc<Self>, held_back: &[Quota]) {
        for quota in held_back {
            // Only one task waits per task type, however often this is called.
            if let Some(retry_in) = quota.retry_in
                && self.waits_for_rate.lock().insert(quota.type_id)
            {
                let (dispatch, type_id) = (self.clone(), quota.type_id);
                tokio::spawn(async move {
                    tokio::time::sleep(retry_in).await;
                    dispatch.waits_for_rate.lock().remove(&type_id);
                    dispatch.state.lock().unlock(type_id);
                    // With the highest rank no claim floor is lowered, because no job became ready.
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
