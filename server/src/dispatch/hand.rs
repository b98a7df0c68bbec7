//! Jobs that are leased and were not claimed for anybody in particular, and those that fit nowhere for a while.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use super::{
    UNSENT_AFTER, ahead,
    state::{Deliveries, DispatchState},
    type_queue::{Dealt, TypeQueue},
};
use crate::job::{LeasedJob, Ready, TypeId};

/// Jobs that have not been dealt for too long.
#[derive(Default)]
pub(super) struct Stale {
    pub(super) jobs: Vec<LeasedJob>,
    /// The types of those that were claimed ahead.
    pub(super) returning: Vec<Ready>,
}

/// A job that is leased and not dealt.
pub(super) struct Kept {
    pub(super) job: LeasedJob,
    /// Then it is released.
    until: Instant,
    /// It was claimed ahead, and all windows were full. Otherwise there is less capacity than the claim counted on, or it is too
    /// large for what there is.
    pub(super) is_ahead: bool,
}

impl TypeQueue {
    /// Deals jobs, after those that are kept; those that do not fit now are kept.
    pub(super) fn deal_or_keep(&mut self, jobs: VecDeque<LeasedJob>, dealt: &mut Dealt) {
        self.deal_hand(dealt);
        let left = self.deal(jobs, dealt);
        let is_ahead = self.ahead.asked && self.open.is_empty();
        let until = Instant::now() + if is_ahead { ahead::KEPT } else { UNSENT_AFTER };
        self.hand.extend(left.into_iter().map(|job| Kept { job, until, is_ahead }));
    }

    /// Deals the kept jobs, now that there is more capacity.
    pub(super) fn deal_hand(&mut self, dealt: &mut Dealt) {
        let mut too_large = VecDeque::new();
        // As many as there are places for: there may be hundreds, and places become free one by one.
        while !self.open.is_empty()
            && let Some(first) = self.hand.front()
        {
            let (until, places) = (first.until, self.room_jobs() as usize);
            let some = self.hand.drain(..places.min(self.hand.len())).map(|kept| kept.job).collect();
            let left = self.deal(some, dealt);
            too_large.extend(left.into_iter().map(|job| Kept { job, until, is_ahead: false }));
        }
        too_large.append(&mut self.hand);
        self.hand = too_large;
    }
}

impl DispatchState {
    /// Whether the claim loop has to look, now that something has happened to this type: there is a claim to make, or jobs are kept,
    /// which are to be released some time.
    pub(super) fn concerns_claims(&self, type_id: TypeId) -> bool {
        !self.turn.is_empty() || self.types.get(&type_id).is_some_and(|queue| !queue.hand.is_empty())
    }

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

    /// Deals kept jobs to sessions that have room again without having finished a job: they read again.
    pub(super) fn deal_hands(&mut self) -> Deliveries {
        let mut dealt = Deliveries::new();
        for (type_id, queue) in &mut self.types {
            if !queue.hand.is_empty() && !queue.open.is_empty() && !self.paused.contains(type_id) {
                let mut of_type = Dealt::new();
                queue.deal_hand(&mut of_type);
                dealt.extend(of_type.into_values());
            }
        }
        dealt
    }

    /// Jobs that have not been dealt for too long, and when that will be so for the others. They are to be released, and with one that was
    /// claimed ahead all that were. Of those `returned` is to be told then.
    pub(super) fn stale_hand(&mut self, now: Instant) -> (Stale, Option<Instant>) {
        let (mut stale, mut next) = (Stale::default(), None);
        let mut left = Vec::new();
        for (type_id, queue) in &mut self.types {
            while let Some(first) = queue.hand.front() {
                if first.until > now {
                    next = Some(next.map_or(first.until, |n: Instant| n.min(first.until)));
                    break;
                }
                if let Some(Kept { job, is_ahead, .. }) = queue.hand.pop_front() {
                    if is_ahead {
                        // Those that were claimed later would overtake it.
                        let later = queue.take_ahead();
                        let lowest_rank = later.iter().map(|job| job.rank).fold(job.rank, i64::min);
                        queue.returning += 1;
                        stale.returning.push(Ready { type_id: *type_id, lowest_rank, jobs: 0 });
                        stale.jobs.extend(later);
                    } else {
                        queue.leave_heavy(job.weight);
                    }
                    stale.jobs.push(job);
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

    /// Jobs that were claimed ahead are ready again.
    pub(super) fn returned(&mut self, returned: &[Ready]) {
        for ready in returned {
            if let Some(queue) = self.types.get_mut(&ready.type_id) {
                queue.returning = queue.returning.saturating_sub(1);
                queue.lower_floor(ready.lowest_rank);
            }
            self.pass(ready.type_id);
            self.enlist(ready.type_id);
        }
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
