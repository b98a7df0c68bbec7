//! State of dispatch: all task types and subscriptions, behind one lock that is held briefly.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Instant,
};

use howdah_core::job::{Lease, LeasedJob, Ready, TypeId};
use tokio::sync::Notify;

use super::{
    Load, Need, Recipient, Reserved, SessionKey, Window,
    buffer::by_type,
    fill_right::{Event, FillRight},
    type_queue::{Assigned, TypeQueue},
};
use crate::store::{Quota, Want};

/// Maximum number of task types in a claim.
const CLAIM_TYPES: usize = 512;
/// Maximum number of jobs in a claim.
const CLAIM_JOBS: u64 = 2_000;

/// Jobs assigned to sessions.
pub(super) type Deliveries = Vec<(Arc<dyn Recipient>, Vec<LeasedJob>)>;

#[derive(Default)]
pub(super) struct DispatchState {
    pub(super) types: HashMap<TypeId, TypeQueue>,
    // Task types to claim, in rotation, so that no type starves another.
    pub(super) claim_rotation: VecDeque<TypeId>,
    by_session: HashMap<SessionKey, Vec<TypeId>>,
    // `PullJobs` calls that wait for jobs, by task type.
    waiters: HashMap<TypeId, Vec<Arc<Notify>>>,
    pub(super) paused: HashSet<TypeId>,
    pub(super) closed: bool,
    /// True after a failed claim, until a claim succeeds or ready jobs are announced.
    pub(super) is_unreachable: bool,
    /// Events of shared windows, to be handled after the lock of dispatch is released.
    pub(super) events: Vec<Event>,
}

impl DispatchState {
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Replaces the set of paused types. Types that are no longer paused are claimed immediately. Returns prefetched
    /// jobs of paused types.
    pub(super) fn pause(&mut self, paused: HashSet<TypeId>) -> Vec<LeasedJob> {
        let before = std::mem::replace(&mut self.paused, paused);
        for type_id in before {
            if !self.paused.contains(&type_id) {
                self.waiters.get(&type_id).into_iter().flatten().for_each(|notify| notify.notify_one());
                self.queue_claim(type_id);
            }
        }
        let of_paused = self.types.iter_mut().filter(|(type_id, _)| self.paused.contains(type_id));
        let buffer = of_paused.flat_map(|(_, queue)| queue.take_prefetched()).collect();
        self.pass_all_rights();
        buffer
    }

    /// Returns the task types that workers subscribe to, or wait for in a `PullJobs` call.
    pub(super) fn subscribed(&self) -> Vec<TypeId> {
        self.types.keys().chain(self.waiters.keys()).copied().collect()
    }

    /// Returns the number of workers per task type that subscribe to it, or wait for it in a `PullJobs` call.
    pub(super) fn workers(&self) -> HashMap<TypeId, usize> {
        let mut workers: HashMap<TypeId, usize> =
            self.types.iter().map(|(type_id, queue)| (*type_id, queue.subscribers())).collect();
        for (type_id, notifies) in &self.waiters {
            *workers.entry(*type_id).or_default() += notifies.len();
        }
        workers
    }

    pub(super) fn is_paused(&self, type_id: TypeId) -> bool {
        self.paused.contains(&type_id)
    }

    /// Returns the number of jobs of a task type that claims have returned so far, for comparison with an earlier
    /// value.
    pub(super) fn claimed_total(&self, type_id: TypeId) -> u64 {
        self.types.get(&type_id).map_or(0, |queue| queue.claimed_total)
    }

    pub(super) fn ready(&mut self, ready: impl Iterator<Item = Ready>) -> Vec<Ready> {
        let mut unserved = Vec::new();
        self.is_unreachable = false;
        for r in ready {
            // A task type without workers at this broker has no queue.
            let room = self.types.get_mut(&r.type_id).map_or(0, |queue| {
                queue.lower_floor(r.lowest_rank);
                queue.held_back = false;
                queue.backlog = queue.backlog.saturating_add(r.jobs);
                queue.woken_jobs += r.jobs;
                queue.room_jobs()
            });
            self.waiters.get(&r.type_id).into_iter().flatten().for_each(|notify| notify.notify_one());
            if room < r.jobs {
                unserved.push(r);
            }
            self.queue_claim(r.type_id);
        }
        unserved
    }

    pub(super) fn set_window(
        &mut self,
        session: &Arc<dyn Recipient>,
        type_id: TypeId,
        window: Window,
        held: Load,
        fill_right: Option<(&Arc<FillRight>, usize)>,
    ) -> Deliveries {
        let key = session.key();
        let types = self.by_session.entry(key).or_default();
        if !types.contains(&type_id) {
            types.push(type_id);
        }
        let queue = self.types.entry(type_id).or_default();
        let other = queue.subscribe(session, window, held, fill_right);
        let mut assigned = Assigned::new();
        queue.assign_buffered(&mut assigned);
        self.events.extend(other.map(|share| Event::Left(share.right, share.store_no, Load::default())));
        self.changed(type_id, key);
        self.queue_claim(type_id);
        assigned.into_values().collect()
    }

    pub(super) fn claimed_up_to(&self, type_id: TypeId) -> i64 {
        self.types.get(&type_id).map_or(i64::MIN, |queue| queue.floor)
    }

    pub(super) fn windows(&self, session: SessionKey) -> Vec<(TypeId, Window)> {
        let types = self.by_session.get(&session).into_iter().flatten();
        types.filter_map(|&type_id| Some((type_id, self.types.get(&type_id)?.window(session)?))).collect()
    }

    /// Removes a session. Returns prefetched jobs of task types whose last worker it was.
    pub(super) fn remove_session(&mut self, session: SessionKey) -> Vec<LeasedJob> {
        let mut buffer = Vec::new();
        for type_id in self.by_session.remove(&session).unwrap_or_default() {
            if let Some(queue) = self.types.get_mut(&type_id) {
                let share = queue.remove(session).and_then(|old| Some((old.share?, old.held)));
                self.events.extend(share.map(|(share, held)| Event::Left(share.right, share.store_no, held)));
                if queue.workers() == 0 {
                    buffer.extend(queue.take_prefetched());
                }
                if queue.is_unused() {
                    self.types.remove(&type_id);
                }
            }
        }
        buffer
    }

    pub(super) fn free(&mut self, session: SessionKey, type_id: TypeId, load: Load) -> Deliveries {
        let Some(queue) = self.types.get_mut(&type_id) else { return Vec::new() };
        queue.prefetch.finished(load.jobs);
        queue.change(session, |s| {
            s.held.jobs = s.held.jobs.saturating_sub(load.jobs);
            s.held.bytes = s.held.bytes.saturating_sub(load.bytes);
        });
        let mut assigned = Assigned::new();
        queue.assign_buffered(&mut assigned);
        if queue.has_shared_windows() {
            self.changed(type_id, session);
        }
        self.queue_claim(type_id);
        assigned.into_values().collect()
    }

    pub(super) fn hold(&mut self, session: SessionKey, type_id: TypeId, load: Load) {
        if let Some(queue) = self.types.get_mut(&type_id) {
            queue.change(session, |s| {
                s.held.jobs += load.jobs;
                s.held.bytes += load.bytes;
            });
            self.changed(type_id, session);
        }
    }

    pub(super) fn stall(&mut self, session: SessionKey, stalled: bool) {
        for type_id in self.by_session.get(&session).cloned().unwrap_or_default() {
            if let Some(queue) = self.types.get_mut(&type_id) {
                queue.change(session, |s| s.stalled = stalled);
            }
            self.changed(type_id, session);
            self.queue_claim(type_id);
        }
    }

    pub(super) fn withdraw(&mut self, leases: &[Lease]) {
        let over: HashSet<Lease> = leases.iter().copied().collect();
        let mut fewer = Vec::new();
        for (type_id, queue) in &mut self.types {
            let before = queue.buffer.len();
            queue.buffer.retain(|buffered| !over.contains(&buffered.job.lease));
            if queue.buffer.len() < before {
                fewer.push(*type_id);
            }
        }
        for type_id in fewer {
            self.pass_right(type_id);
            self.queue_claim(type_id);
        }
    }

    pub(super) fn add_waiter(&mut self, types: &[TypeId], notify: &Arc<Notify>) {
        for type_id in types {
            self.waiters.entry(*type_id).or_default().push(notify.clone());
        }
    }

    pub(super) fn remove_waiter(&mut self, types: &[TypeId], notify: &Arc<Notify>) {
        for type_id in types {
            if let Some(notifies) = self.waiters.get_mut(type_id) {
                notifies.retain(|b| !Arc::ptr_eq(b, notify));
                if notifies.is_empty() {
                    self.waiters.remove(type_id);
                }
            }
        }
    }

    pub(super) fn close(&mut self) -> Vec<LeasedJob> {
        self.closed = true;
        // Wakes waiting `PullJobs` calls, which would otherwise delay the shutdown.
        self.waiters.values().flatten().for_each(|notify| notify.notify_one());
        self.claim_rotation.clear();
        self.pass_all_rights();
        self.types.values_mut().flat_map(|queue| queue.buffer.drain(..).map(|buffered| buffered.job)).collect()
    }

    /// Queues a task type for a claim, if a claim could return jobs.
    pub(super) fn queue_claim(&mut self, type_id: TypeId) {
        let Some(queue) = self.types.get_mut(&type_id) else { return };
        if queue.ready
            && !queue.held_back
            && !queue.locked
            && queue.returning == 0
            && !queue.queued
            && queue.wanted() > 0
            && !self.paused.contains(&type_id)
        {
            queue.queued = true;
            self.claim_rotation.push_back(type_id);
        }
        if !queue.idle.is_empty() {
            self.request_windows(type_id);
        }
    }

    /// Returns the next claim; empty if no claim is due.
    pub(super) fn next_claim(&mut self, now: Instant) -> Vec<Want> {
        let mut wants = Vec::new();
        let mut jobs_left = CLAIM_JOBS;
        if self.closed {
            return wants;
        }
        while wants.len() < CLAIM_TYPES && jobs_left > 0 {
            let Some(type_id) = self.claim_rotation.pop_front() else { break };
            let Some(queue) = self.types.get_mut(&type_id) else { continue };
            queue.queued = false;
            let wanted = queue.wanted().min(jobs_left);
            let is_held_up = !queue.ready || queue.locked || queue.returning > 0;
            if wanted == 0 || is_held_up || self.paused.contains(&type_id) {
                continue;
            }
            jobs_left -= wanted;
            // A wake-up while the claim runs sets `ready` again, so that no wake-up is missed.
            queue.ready = false;
            queue.claiming = true;
            let takes_more = queue.wanted_to_prefetch() > 0;
            queue.prefetch.claim_begins(takes_more, now);
            queue.woken = None;
            queue.woken_jobs = 0;
            wants.push(Want {
                type_id,
                jobs: wanted as i32,
                floor: queue.floor,
                largest: queue.largest_wanted().min(i64::MAX as u64) as i64,
            });
        }
        wants
    }

    /// Processes the result of a claim. `cut`: the claim may have left ready jobs although it returned fewer jobs than
    /// requested, because of its limit on bytes or expired jobs. `held_back`: task types with ready jobs that a limit
    /// did not allow to be claimed.
    pub(super) fn claimed(
        &mut self,
        wants: &[Want],
        jobs: Vec<LeasedJob>,
        cut: bool,
        held_back: &[Quota],
        now: Instant,
    ) -> (Deliveries, Vec<LeasedJob>) {
        self.is_unreachable = false;
        let mut by_type = by_type(jobs);
        let mut assigned = Assigned::new();
        let mut unassignable = Vec::new();
        for want in wants {
            let jobs = by_type.remove(&want.type_id).unwrap_or_default();
            let Some(queue) = self.types.get_mut(&want.type_id) else {
                unassignable.extend(jobs);
                continue;
            };
            queue.claiming = false;
            if let Some(last) = jobs.back() {
                // Jobs announced during the claim may have become visible after its snapshot, so the next claim must
                // start at their rank.
                queue.floor = queue.woken.map_or(last.rank, |woken| woken.min(last.rank));
            }
            queue.claimed_total += jobs.len() as u64;
            let quota = held_back.iter().find(|quota| quota.type_id == want.type_id);
            queue.locked = quota.is_some_and(|quota| quota.is_locked);
            queue.held_back = quota.is_some() && (queue.locked || queue.woken.is_none());
            let short = !cut && !queue.held_back && jobs.len() < want.jobs as usize;
            // A claim that returned fewer jobs than requested took all jobs that were ready when it began.
            queue.backlog = if short { queue.woken_jobs } else { queue.backlog.saturating_sub(jobs.len() as u64) };
            queue.ready |= !short;
            queue.prefetch.claim_ends(!short && !queue.held_back, now);
            jobs.iter().for_each(|job| queue.learn_size(job.weight));
            queue.assign_or_buffer(jobs, &mut assigned);
            self.pass_right(want.type_id);
            self.queue_claim(want.type_id);
        }
        (assigned.into_values().collect(), unassignable)
    }

    /// Allows claims of a task type again whose limit another transaction had locked.
    pub(super) fn unlock(&mut self, type_id: TypeId) {
        if let Some(queue) = self.types.get_mut(&type_id) {
            queue.locked = false;
        }
    }

    /// Returns the task types of a claim that still have ready jobs while this broker has no free capacity for them.
    /// Other brokers may have capacity.
    pub(super) fn left_over(&self, wants: &[Want]) -> Vec<Ready> {
        let left = wants.iter().filter_map(|want| {
            let queue = self.types.get(&want.type_id)?;
            (queue.ready && queue.room_jobs() == 0).then_some((want.type_id, queue.floor))
        });
        left.map(|(type_id, lowest_rank)| Ready { type_id, lowest_rank, jobs: 1 }).collect()
    }

    /// Queues the task types of a failed claim for another claim.
    pub(super) fn claim_failed(&mut self, wants: &[Want]) {
        self.is_unreachable = true;
        for want in wants {
            if let Some(queue) = self.types.get_mut(&want.type_id) {
                queue.ready = true;
                queue.claiming = false;
            }
            self.pass_right(want.type_id);
            self.queue_claim(want.type_id);
        }
    }

    /// Returns whether claims will soon have taken all ready jobs of at least one of these task types.
    pub(super) fn is_soon_empty(&self, types: impl Iterator<Item = TypeId>) -> bool {
        let soon =
            |type_id| self.types.get(&type_id).is_some_and(TypeQueue::is_soon_empty) && !self.paused.contains(&type_id);
        !self.closed && types.into_iter().any(soon)
    }

    /// Reserves capacity for all jobs of a request, or for none.
    pub(super) fn reserve(&mut self, needs: &[Need]) -> bool {
        let fits = |n: &Need| {
            self.types.get(&n.type_id).is_some_and(|q| q.may_go_direct(n.load, n.heaviest))
                && !self.paused.contains(&n.type_id)
        };
        let reserved = !self.closed && needs.iter().all(fits);
        if reserved {
            for need in needs {
                if let Some(queue) = self.types.get_mut(&need.type_id) {
                    queue.reserve(need.load);
                }
            }
        }
        reserved
    }

    /// Gives back reserved capacity.
    pub(super) fn unreserve(&mut self, reserved: Reserved) {
        for (type_id, load) in reserved.0 {
            if let Some(queue) = self.types.get_mut(&type_id) {
                queue.unreserve(load);
            }
            self.pass_right(type_id);
            self.queue_claim(type_id);
        }
    }
}
