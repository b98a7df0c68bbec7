//! Jobs that are leased and were not claimed for anybody in particular, and those that fit nowhere for a while.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use super::{
    UNSENT_AFTER,
    state::{Deliveries, DispatchState},
    type_queue::Dealt,
};
use crate::job::{LeasedJob, TypeId};

impl DispatchState {
    /// Deals jobs that were not claimed. Returns jobs of types that have no workers here any more.
    pub(super) fn deal(&mut self, jobs: Vec<LeasedJob>) -> (Deliveries, Vec<LeasedJob>) {
        let mut dealt = Dealt::new();
        let mut nobodys = Vec::new();
        for (type_id, jobs) in by_type(jobs) {
            match self.types.get_mut(&type_id) {
                Some(queue) if !self.closed => {
                    queue.deal_or_keep(jobs, &mut dealt);
                    self.pass(type_id);
                    self.ask(type_id);
                }
                _ => nobodys.extend(jobs),
            }
        }
        (dealt.into_values().collect(), nobodys)
    }

    /// Jobs that have not been dealt for too long, and when that will be so for the others.
    pub(super) fn stale_hand(&mut self, now: Instant) -> (Vec<LeasedJob>, Option<Instant>) {
        let (mut stale, mut next) = (Vec::new(), None);
        let mut left = Vec::new();
        for (type_id, queue) in &mut self.types {
            while let Some((since, _)) = queue.hand.front() {
                let at = *since + UNSENT_AFTER;
                if at > now {
                    next = Some(next.map_or(at, |n: Instant| n.min(at)));
                    break;
                }
                if let Some((_, job)) = queue.hand.pop_front() {
                    queue.leave_heavy(job.weight);
                    stale.push(job);
                    left.push(*type_id);
                }
            }
        }
        for type_id in left {
            self.pass(type_id);
            self.enlist(type_id);
        }
        (stale, next)
    }
}

/// Each type by itself, in the order of the jobs.
pub(super) fn by_type(jobs: Vec<LeasedJob>) -> HashMap<TypeId, VecDeque<LeasedJob>> {
    let mut by_type: HashMap<TypeId, VecDeque<LeasedJob>> = HashMap::new();
    for job in jobs {
        by_type.entry(job.type_id).or_default().push_back(job);
    }
    by_type
}
