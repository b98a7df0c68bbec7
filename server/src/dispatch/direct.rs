//! Direct enqueue: capacity is reserved for jobs while they are being stored, so that the statement that stores them
//! also leases them.

use std::{collections::HashMap, time::Duration};

use super::{Dispatch, Load, Offered, Unsent};
use crate::job::{LeasedJob, Tokens, TypeId};

/// The capacity that the jobs of one type in a request need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// The type.
    pub(crate) type_id: TypeId,
    /// For all of them together.
    pub(crate) load: Load,
    /// The weight of the heaviest.
    pub(crate) heaviest: u64,
}

/// Reserved capacity, by type. It must be returned by `deal_reserved` or `unreserve`.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Reserved(pub(super) HashMap<TypeId, Load>);

impl Reserved {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The longest time that enqueues wait for a claim that may let them go direct.
const MOST_WAIT: Duration = Duration::from_millis(50);

impl Dispatch {
    /// Waits while claims in progress are about to leave nothing ready of these types. Otherwise jobs that come during
    /// a claim would be stored for the next one, during which others come: under load, jobs would never go direct
    /// again.
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
        // Then they are stored as ready.
        let _ = tokio::time::timeout(MOST_WAIT, claims).await;
    }

    /// For each request: whether all of its jobs may go direct to workers here. Their types must have no ready jobs
    /// that this broker knows of, and there must be capacity. A request that may not go direct also holds back later
    /// requests of its types.
    pub(crate) fn reserve<'a>(&self, requests: impl Iterator<Item = &'a [Need]>) -> (Vec<bool>, Reserved) {
        let mut reserved = Reserved::default();
        let mut behind: Vec<TypeId> = Vec::new();
        let mut state = self.state.lock();
        let direct = requests.map(|needs| {
            let free = needs.iter().all(|need| !behind.contains(&need.type_id) && !self.is_limited(need.type_id))
                && state.reserve(needs);
            for need in needs {
                if free {
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

    /// The jobs are stored and leased: deals them. Jobs that no longer fit are released, as after a claim.
    pub(crate) fn deal_reserved(&self, reserved: Reserved, jobs: Vec<LeasedJob>) -> Offered {
        let types: Vec<TypeId> = reserved.0.keys().copied().collect();
        let (dealt, nobodys, concerns_claims) = self.with(|state| {
            state.unreserve(reserved);
            let (dealt, nobodys) = state.deal(jobs);
            (dealt, nobodys, types.into_iter().any(|type_id| state.concerns_claims(type_id)))
        });
        self.release(nobodys);
        if concerns_claims {
            self.work.notify_one();
        }
        self.offer(dealt)
    }

    /// The jobs were not stored, or not leased.
    pub(crate) fn unreserve(&self, reserved: Reserved) {
        if !reserved.is_empty() {
            self.with(|state| state.unreserve(reserved));
            self.work.notify_one();
        }
    }

    /// Nobody knows whether a statement with these tokens was committed: what it leased is looked for, and released.
    pub(crate) fn look_for_lost(&self, tokens: Tokens) {
        if !tokens.as_vec().is_empty() {
            let _ = self.unsent.send(Unsent::Claim(tokens));
        }
    }
}
