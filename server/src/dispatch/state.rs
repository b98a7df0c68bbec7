//! The state of dispatch: every type and every subscription, behind one short lock.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Instant,
};

use tokio::sync::Notify;

use super::{
    Load, Need, Recipient, Reserved, SessionKey, Window,
    hand::by_type,
    turn::{Event, Turn},
    type_queue::{Dealt, TypeQueue},
};
use crate::{
    job::{Lease, LeasedJob, Ready, TypeId},
    store::{Quota, Want},
};

/// The most types in a claim.
const CLAIM_TYPES: usize = 512;
/// The most jobs in a claim.
const CLAIM_JOBS: u64 = 2_000;

/// Jobs dealt to sessions.
pub(super) type Deliveries = Vec<(Arc<dyn Recipient>, Vec<LeasedJob>)>;

#[derive(Default)]
pub(super) struct DispatchState {
    pub(super) types: HashMap<TypeId, TypeQueue>,
    // Types to claim, in turn, so that none starves another.
    pub(super) turn: VecDeque<TypeId>,
    by_session: HashMap<SessionKey, Vec<TypeId>>,
    // Calls without a stream that wait for jobs of a type.
    waiters: HashMap<TypeId, Vec<Arc<Notify>>>,
    // Paused types.
    pub(super) paused: HashSet<TypeId>,
    pub(super) closed: bool,
    /// The last claim failed, and nothing was heard of the database since.
    pub(super) is_away: bool,
    /// What turns have to know, once this lock is free.
    pub(super) events: Vec<Event>,
}

impl DispatchState {
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// From now on exactly these types are paused. Types that are not paused any more are claimed at once. Returns jobs of
    /// paused types that were claimed and not dealt.
    pub(super) fn pause(&mut self, paused: HashSet<TypeId>) -> Vec<LeasedJob> {
        let before = std::mem::replace(&mut self.paused, paused);
        for type_id in before {
            if !self.paused.contains(&type_id) {
                self.waiters.get(&type_id).into_iter().flatten().for_each(|bell| bell.notify_one());
                self.enlist(type_id);
            }
        }
        let of_paused = self.types.iter_mut().filter(|(type_id, _)| self.paused.contains(type_id));
        let hand = of_paused.flat_map(|(_, queue)| queue.take_ahead()).collect();
        self.pass_all();
        hand
    }

    /// The types that workers are subscribed to, or wait for in a call.
    pub(super) fn subscribed(&self) -> Vec<TypeId> {
        self.types.keys().chain(self.waiters.keys()).copied().collect()
    }

    /// How many workers are subscribed to each type, or wait for it in a call.
    pub(super) fn workers(&self) -> HashMap<TypeId, usize> {
        let mut workers: HashMap<TypeId, usize> =
            self.types.iter().map(|(type_id, queue)| (*type_id, queue.workers())).collect();
        for (type_id, bells) in &self.waiters {
            *workers.entry(*type_id).or_default() += bells.len();
        }
        workers
    }

    pub(super) fn is_paused(&self, type_id: TypeId) -> bool {
        self.paused.contains(&type_id)
    }

    /// How many jobs of a type claims have brought, to compare with an earlier number.
    pub(super) fn brought(&self, type_id: TypeId) -> u64 {
        self.types.get(&type_id).map_or(0, |queue| queue.brought)
    }

    pub(super) fn ready(&mut self, ready: impl Iterator<Item = Ready>) -> Vec<Ready> {
        let mut unserved = Vec::new();
        self.is_away = false;
        for r in ready {
            // A type without workers here has no queue.
            let room = self.types.get_mut(&r.type_id).map_or(0, |queue| {
                queue.lower_floor(r.lowest_rank);
                queue.held_back = false;
                queue.backlog = queue.backlog.saturating_add(r.jobs);
                queue.woken_jobs += r.jobs;
                queue.room_jobs()
            });
            self.waiters.get(&r.type_id).into_iter().flatten().for_each(|bell| bell.notify_one());
            if room < r.jobs {
                unserved.push(r);
            }
            self.enlist(r.type_id);
        }
        unserved
    }

    pub(super) fn set_window(
        &mut self,
        session: &Arc<dyn Recipient>,
        type_id: TypeId,
        window: Window,
        held: Load,
        turn: Option<(&Arc<Turn>, usize)>,
    ) -> Deliveries {
        let key = session.key();
        let types = self.by_session.entry(key).or_default();
        if !types.contains(&type_id) {
            types.push(type_id);
        }
        let queue = self.types.entry(type_id).or_default();
        let other = queue.subscribe(session, window, held, turn);
        let mut dealt = Dealt::new();
        queue.deal_hand(&mut dealt);
        self.events.extend(other.map(|seat| Event::Left(seat.turn, seat.engine, Load::default())));
        self.changed(type_id, key);
        self.enlist(type_id);
        dealt.into_values().collect()
    }

    pub(super) fn claimed_up_to(&self, type_id: TypeId) -> i64 {
        self.types.get(&type_id).map_or(i64::MIN, |queue| queue.floor)
    }

    pub(super) fn windows(&self, session: SessionKey) -> Vec<(TypeId, Window)> {
        let types = self.by_session.get(&session).into_iter().flatten();
        types.filter_map(|&type_id| Some((type_id, self.types.get(&type_id)?.window(session)?))).collect()
    }

    /// Returns jobs that were claimed ahead for workers of whom this was the last.
    pub(super) fn leave(&mut self, session: SessionKey) -> Vec<LeasedJob> {
        let mut hand = Vec::new();
        for type_id in self.by_session.remove(&session).unwrap_or_default() {
            if let Some(queue) = self.types.get_mut(&type_id) {
                let seat = queue.remove(session).and_then(|old| Some((old.seat?, old.held)));
                self.events.extend(seat.map(|(seat, held)| Event::Left(seat.turn, seat.engine, held)));
                if queue.workers() == 0 {
                    hand.extend(queue.take_ahead());
                }
                if queue.is_unused() {
                    self.types.remove(&type_id);
                }
            }
        }
        hand
    }

    pub(super) fn free(&mut self, session: SessionKey, type_id: TypeId, load: Load) -> Deliveries {
        let Some(queue) = self.types.get_mut(&type_id) else { return Vec::new() };
        queue.ahead.finished(load.jobs);
        queue.change(session, |s| {
            s.held.jobs = s.held.jobs.saturating_sub(load.jobs);
            s.held.bytes = s.held.bytes.saturating_sub(load.bytes);
        });
        let mut dealt = Dealt::new();
        queue.deal_hand(&mut dealt);
        if queue.has_turns() {
            self.changed(type_id, session);
        }
        self.enlist(type_id);
        dealt.into_values().collect()
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
            self.enlist(type_id);
        }
    }

    pub(super) fn withdraw(&mut self, leases: &[Lease]) {
        let over: HashSet<Lease> = leases.iter().copied().collect();
        let mut fewer = Vec::new();
        for (type_id, queue) in &mut self.types {
            let before = queue.hand.len();
            queue.hand.retain(|kept| !over.contains(&kept.job.lease));
            if queue.hand.len() < before {
                fewer.push(*type_id);
            }
        }
        for type_id in fewer {
            self.pass(type_id);
            self.enlist(type_id);
        }
    }

    pub(super) fn add_waiter(&mut self, types: &[TypeId], bell: &Arc<Notify>) {
        for type_id in types {
            self.waiters.entry(*type_id).or_default().push(bell.clone());
        }
    }

    pub(super) fn remove_waiter(&mut self, types: &[TypeId], bell: &Arc<Notify>) {
        for type_id in types {
            if let Some(bells) = self.waiters.get_mut(type_id) {
                bells.retain(|b| !Arc::ptr_eq(b, bell));
                if bells.is_empty() {
                    self.waiters.remove(type_id);
                }
            }
        }
    }

    pub(super) fn close(&mut self) -> Vec<LeasedJob> {
        self.closed = true;
        // Calls that wait would delay the end.
        self.waiters.values().flatten().for_each(|bell| bell.notify_one());
        self.turn.clear();
        self.pass_all();
        self.types.values_mut().flat_map(|queue| queue.hand.drain(..).map(|kept| kept.job)).collect()
    }

    /// Queues a type for a claim, if a claim could bring jobs.
    pub(super) fn enlist(&mut self, type_id: TypeId) {
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
            self.turn.push_back(type_id);
        }
        if !queue.idle.is_empty() {
            self.ask(type_id);
        }
    }

    /// The next claim; empty: none.
    pub(super) fn next_claim(&mut self, now: Instant) -> Vec<Want> {
        let mut wants = Vec::new();
        let mut jobs_left = CLAIM_JOBS;
        if self.closed {
            return wants;
        }
        while wants.len() < CLAIM_TYPES && jobs_left > 0 {
            let Some(type_id) = self.turn.pop_front() else { break };
            let Some(queue) = self.types.get_mut(&type_id) else { continue };
            queue.queued = false;
            let wanted = queue.wanted().min(jobs_left);
            let is_held_up = !queue.ready || queue.locked || queue.returning > 0;
            if wanted == 0 || is_held_up || self.paused.contains(&type_id) {
                continue;
            }
            jobs_left -= wanted;
            // A wakeup from here on makes it ready again, so nothing is missed while the claim runs.
            queue.ready = false;
            queue.claiming = true;
            let asks = queue.wanted_ahead() > 0;
            queue.ahead.claim_begins(asks, now);
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

    /// A claim has ended. `cut`: its bound on bytes ended it, so a short answer does not mean that nothing is left.
    /// `held_back`: types with ready jobs that a limit did not allow to be claimed.
    pub(super) fn claimed(
        &mut self,
        wants: &[Want],
        jobs: Vec<LeasedJob>,
        cut: bool,
        held_back: &[Quota],
        now: Instant,
    ) -> (Deliveries, Vec<LeasedJob>) {
        self.is_away = false;
        let mut by_type = by_type(jobs);
        let mut dealt = Dealt::new();
        let mut nobodys = Vec::new();
        for want in wants {
            let jobs = by_type.remove(&want.type_id).unwrap_or_default();
            let Some(queue) = self.types.get_mut(&want.type_id) else {
                nobodys.extend(jobs);
                continue;
            };
            queue.claiming = false;
            if let Some(last) = jobs.back() {
                // Jobs that were announced meanwhile may have become visible after the claim's snapshot.
                queue.floor = queue.woken.map_or(last.rank, |woken| woken.min(last.rank));
            }
            queue.brought += jobs.len() as u64;
            let quota = held_back.iter().find(|quota| quota.type_id == want.type_id);
            queue.locked = quota.is_some_and(|quota| quota.is_locked);
            queue.held_back = quota.is_some() && (queue.locked || queue.woken.is_none());
            let short = !cut && !queue.held_back && jobs.len() < want.jobs as usize;
            // A short answer has all jobs that were ready when the claim began.
            queue.backlog = if short { queue.woken_jobs } else { queue.backlog.saturating_sub(jobs.len() as u64) };
            queue.ready |= !short;
            queue.ahead.claim_ends(!short && !queue.held_back, now);
            jobs.iter().for_each(|job| queue.learn_size(job.weight));
            queue.deal_or_keep(jobs, &mut dealt);
            self.pass(want.type_id);
            self.enlist(want.type_id);
        }
        (dealt.into_values().collect(), nobodys)
    }

    /// Another transaction had locked the limit of this type: a claim may try again.
    pub(super) fn unlock(&mut self, type_id: TypeId) {
        if let Some(queue) = self.types.get_mut(&type_id) {
            queue.locked = false;
        }
    }

    /// Types of a claim that left ready jobs for which there is no capacity here. Other brokers may have some.
    pub(super) fn left_over(&self, wants: &[Want]) -> Vec<Ready> {
        let left = wants.iter().filter_map(|want| {
            let queue = self.types.get(&want.type_id)?;
            (queue.ready && queue.room_jobs() == 0).then_some((want.type_id, queue.floor))
        });
        left.map(|(type_id, lowest_rank)| Ready { type_id, lowest_rank, jobs: 1 }).collect()
    }

    /// A claim failed: claim again.
    pub(super) fn claim_failed(&mut self, wants: &[Want]) {
        self.is_away = true;
        for want in wants {
            if let Some(queue) = self.types.get_mut(&want.type_id) {
                queue.ready = true;
                queue.claiming = false;
            }
            self.pass(want.type_id);
            self.enlist(want.type_id);
        }
    }

    /// Whether claims in progress are about to leave nothing ready of one of these types.
    pub(super) fn is_soon_empty(&self, types: impl Iterator<Item = TypeId>) -> bool {
        let soon =
            |type_id| self.types.get(&type_id).is_some_and(TypeQueue::is_soon_empty) && !self.paused.contains(&type_id);
        !self.closed && types.into_iter().any(soon)
    }

    /// Reserves capacity for all of a request's jobs, or for none.
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

    /// Returns reserved capacity.
    pub(super) fn unreserve(&mut self, reserved: Reserved) {
        for (type_id, load) in reserved.0 {
            if let Some(queue) = self.types.get_mut(&type_id) {
                queue.unreserve(load);
            }
            self.pass(type_id);
            self.enlist(type_id);
        }
    }
}
