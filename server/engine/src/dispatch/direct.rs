//! Direct enqueue: reserves worker capacity for jobs while they are being stored. The statement that stores the jobs
//! also leases them.

use std::{collections::HashMap, time::Duration};

use howdah_core::job::{LeasedJob, Tokens, TypeId};

use super::{Dispatch, Load, Offered, Unsent};

/// Worker capacity that a request needs for its jobs of one task type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) type_id: TypeId,
    /// Number of the jobs, and their total bytes.
    pub(crate) load: Load,
    /// Bytes (payload and headers) of the largest job.
    pub(crate) heaviest: u64,
}

/// Reserved capacity by task type. It must be passed to `assign_reserved` or `unreserve`.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Reserved(pub(super) HashMap<TypeId, Load>);

impl Reserved {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Maximum time that direct enqueues wait for claims in progress. After this time, their jobs are stored as ready.
const MOST_WAIT: Duration = Duration::from_millis(50);

impl Dispatch {
    /// Waits for claims that will soon have taken all ready jobs of these task types; after that, new jobs may go
    /// direct. Without the wait, jobs that arrive during a claim would be stored for the next claim. Under load this
    /// would repeat, and no job would go direct again.
    pub(crate) async fn until_claimed(&self, types: impl Iterator<Item = TypeId> + Clone) {
        let claims = async {
            loop {
                let claimed = self.claimed.notified();
                if !self.state.lock().is_soon_empty(types.clone()) {
                    return;
                }
                claimed.await;
            }
        };
        // After the timeout, the jobs are stored as ready.
        let _ = tokio::time::timeout(MOST_WAIT, claims).await;
    }

    /// Decides for each request whether all of its jobs may go direct to workers of this broker. This requires that no
    /// ready jobs of their task types are known, that workers have capacity, and that memory is left for unsent jobs.
    /// If a request may not, neither may later requests of its task types, so that they do not overtake it.
    pub(crate) fn reserve<'a>(&self, requests: impl Iterator<Item = &'a [Need]>) -> (Vec<bool>, Reserved) {
        let mut reserved = Reserved::default();
        let mut behind: Vec<TypeId> = Vec::new();
        let mut room = self.unsent_memory.room();
        let mut state = self.state.lock();
        let direct = requests.map(|needs| {
            let free = needs.iter().all(|need| !behind.contains(&need.type_id) && !self.is_limited(need.type_id))
                && room > 0
                && state.reserve(needs);
            for need in needs {
                if free {
                    room = room.saturating_sub(need.load.bytes);
                    let load = reserved.0.entry(need.type_id).or_default();
                    load.jobs += need.load.jobs;
                    load.bytes += need.load.bytes;
                } else if !behind.contains(&need.type_id) {
                    behind.push(need.type_id);
                }
            }
            free
        });
        (direct.collect(), reserved)
    }

    /// Assigns jobs that a direct enqueue has stored and leased. Jobs that no longer fit are buffered; jobs without a
    /// worker at this broker are released.
    pub(crate) fn assign_reserved(&self, reserved: Reserved, jobs: Vec<LeasedJob>) -> Offered {
        let types: Vec<TypeId> = reserved.0.keys().copied().collect();
        let (assigned, unassignable, concerns_claims) = self.with(|state| {
            state.unreserve(reserved);
            let (assigned, unassignable) = state.assign(jobs);
            (assigned, unassignable, types.into_iter().any(|type_id| state.concerns_claims(type_id)))
        });
        self.release(unassignable);
        if concerns_claims {
            self.work.notify_one();
        }
        self.offer(assigned)
    }

    /// Gives back the capacity that was reserved for jobs that were not stored or not leased.
    pub(crate) fn unreserve(&self, reserved: Reserved) {
        if !reserved.is_empty() {
            self.with(|state| state.unreserve(reserved));
            self.work.notify_one();
        }
    }

    /// Releases leases with these tokens in the background. The answer to the statement that creates the leases was
    /// lost, so it may or may not have committed.
    pub(crate) fn release_lost_claim(&self, tokens: Tokens) {
        if !tokens.as_vec().is_empty() {
            let _ = self.unsent.send(Unsent::Claim(tokens));
        }
    }
}
