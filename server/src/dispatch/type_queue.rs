//! One task type: the known state of its queue in the database, and the sessions with capacity for it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use super::{
    Load, Recipient, SessionKey, Window,
    ahead::Ahead,
    hand::Kept,
    subscription::{Seat, Stand, Subscription},
    turn::Turn,
};
use crate::job::LeasedJob;

/// Jobs dealt, by session.
pub(super) type Dealt = HashMap<SessionKey, (Arc<dyn Recipient>, Vec<LeasedJob>)>;

#[allow(clippy::struct_excessive_bools)] // these are independent facts
pub(super) struct TypeQueue {
    subscriptions: HashMap<SessionKey, Subscription>,
    // The sessions with capacity, the least loaded first.
    pub(super) open: BTreeSet<(u32, SessionKey)>,
    room_jobs: u64,
    room_bytes: u64,
    // Capacity of these that is reserved for jobs that are being stored.
    reserved: Load,
    // How many subscriptions other engines deal to as well.
    turns: usize,
    /// Those of them that this engine could ask for.
    pub(super) idle: BTreeSet<SessionKey>,
    /// The last that was asked for: they are asked for in turn.
    pub(super) asked_last: SessionKey,
    /// Those that it has, and another engine has asked for.
    pub(super) wanted_elsewhere: BTreeSet<SessionKey>,
    // The windows that are being asked for.
    asking_jobs: u64,
    // How many subscriptions can take jobs of at most this size.
    largest: BTreeMap<u64, u32>,
    /// There may be ready jobs.
    pub(super) ready: bool,
    /// A limit holds back its ready jobs, until a wakeup.
    pub(super) held_back: bool,
    /// Another transaction has locked its limit: it is not claimed for a moment, whatever becomes ready.
    pub(super) locked: bool,
    /// It is queued for a claim.
    pub(super) queued: bool,
    /// A claim is in progress.
    pub(super) claiming: bool,
    /// The number of ready jobs, as far as this broker knows: at least those that were announced to it.
    pub(super) backlog: u64,
    /// How many jobs were announced since the last claim began.
    pub(super) woken_jobs: u64,
    /// How many jobs claims have brought.
    pub(super) brought: u64,
    /// Everything of a lower rank has been claimed.
    pub(super) floor: i64,
    /// The lowest rank that was announced since the last claim began.
    pub(super) woken: Option<i64>,
    /// A job of this weight did not fit: heavier ones are not claimed until there is more capacity.
    cap: Option<u64>,
    /// Jobs that were claimed and do not fit now: they are dealt first when there is more capacity.
    pub(super) hand: VecDeque<Kept>,
    /// How many jobs are claimed ahead of the capacity.
    pub(super) ahead: Ahead,
    /// How many times jobs that were claimed ahead are being released. Until they are ready again nothing is claimed or goes direct, so
    /// that no later job overtakes them.
    pub(super) returning: u32,
    average_bytes: f64,
}

impl Default for TypeQueue {
    fn default() -> Self {
        Self {
            subscriptions: HashMap::new(),
            open: BTreeSet::new(),
            room_jobs: 0,
            room_bytes: 0,
            reserved: Load::default(),
            turns: 0,
            idle: BTreeSet::new(),
            asked_last: 0,
            wanted_elsewhere: BTreeSet::new(),
            asking_jobs: 0,
            largest: BTreeMap::new(),
            // Assumed until a claim has shown otherwise.
            ready: true,
            held_back: false,
            locked: false,
            queued: false,
            claiming: false,
            backlog: u64::MAX,
            woken_jobs: 0,
            brought: 0,
            floor: i64::MIN,
            woken: None,
            cap: None,
            hand: VecDeque::new(),
            ahead: Ahead::default(),
            returning: 0,
            average_bytes: 256.0,
        }
    }
}

impl TypeQueue {
    pub(super) fn is_unused(&self) -> bool {
        self.subscriptions.is_empty() && self.hand.is_empty()
    }

    pub(super) fn subscription(&self, key: SessionKey) -> Option<&Subscription> {
        self.subscriptions.get(&key)
    }

    /// Whether other engines deal to some of its windows.
    pub(super) fn has_turns(&self) -> bool {
        self.turns > 0
    }

    /// How many sessions have a window that is open.
    pub(super) fn workers(&self) -> usize {
        self.subscriptions.values().filter(|subscription| subscription.window.jobs > 0).count()
    }

    pub(super) fn room_jobs(&self) -> u64 {
        self.room_jobs
    }

    /// The window of a session.
    pub(super) fn window(&self, key: SessionKey) -> Option<Window> {
        self.subscriptions.get(&key).map(|subscription| subscription.window)
    }

    /// How many jobs to claim: as many as fit, and some ahead.
    pub(super) fn wanted(&self) -> u64 {
        self.fitting() + self.wanted_ahead()
    }

    /// How many jobs fit, in jobs and (by the average size) in bytes.
    fn fitting(&self) -> u64 {
        let jobs = self.room_jobs.saturating_sub(self.reserved.jobs.into());
        if jobs == 0 || !self.hand.is_empty() {
            return 0;
        }
        let bytes = self.room_bytes.saturating_sub(self.reserved.bytes);
        let by_bytes = (bytes as f64 / self.average_bytes.max(1.0)) as u64;
        jobs.min(by_bytes.max(1))
    }

    /// Whether jobs that are about to be stored would overtake none, and fit.
    pub(super) fn may_go_direct(&self, load: Load, heaviest: u64) -> bool {
        !self.ready
            && !self.claiming
            && self.returning == 0
            && self.hand.is_empty()
            && self.is_room_for_direct(load)
            && heaviest <= self.largest_wanted()
    }

    /// Windows that another engine has asked for are left out, so that it gets them as soon as what goes there now has come.
    fn is_room_for_direct(&self, load: Load) -> bool {
        let wanted = self.wanted_elsewhere.iter().filter_map(|key| self.subscriptions.get(key)?.open_room());
        let (jobs, bytes) = wanted
            .fold((self.room_jobs, self.room_bytes), |(jobs, bytes), w| (jobs - u64::from(w.jobs), bytes - w.bytes));
        jobs >= u64::from(self.reserved.jobs) + u64::from(load.jobs) && bytes >= self.reserved.bytes + load.bytes
    }

    /// Whether the claims in progress will leave nothing ready. Then it is worth waiting for them, because the next
    /// jobs may go direct.
    pub(super) fn is_soon_empty(&self) -> bool {
        let fitting = self.fitting();
        (self.ready || self.claiming) && fitting > 0 && self.backlog <= fitting
    }

    pub(super) fn reserve(&mut self, load: Load) {
        self.reserved.jobs += load.jobs;
        self.reserved.bytes += load.bytes;
    }

    pub(super) fn unreserve(&mut self, load: Load) {
        // The queue may have been recreated since.
        self.reserved.jobs = self.reserved.jobs.saturating_sub(load.jobs);
        self.reserved.bytes = self.reserved.bytes.saturating_sub(load.bytes);
    }

    /// The largest job that a worker here can take.
    fn largest(&self) -> u64 {
        self.largest.last_key_value().map_or(0, |(bytes, _)| *bytes)
    }

    /// The largest job to claim now.
    pub(super) fn largest_wanted(&self) -> u64 {
        self.largest().min(self.cap.unwrap_or(u64::MAX))
    }

    /// A job of this weight could not be dealt for too long: others may take it, and lighter ones may go first.
    pub(super) fn leave_heavy(&mut self, weight: u64) {
        if self.taker(weight).is_none() {
            let cap = weight.saturating_sub(1);
            self.cap = Some(self.cap.map_or(cap, |c| c.min(cap)));
        }
    }

    pub(super) fn lower_floor(&mut self, rank: i64) {
        self.ready = true;
        self.floor = self.floor.min(rank);
        self.woken = Some(self.woken.map_or(rank, |woken| woken.min(rank)));
    }

    pub(super) fn learn_size(&mut self, bytes: u64) {
        self.average_bytes += (bytes as f64 - self.average_bytes) / 64.0;
    }

    /// Adds or replaces a subscription. With a turn, this engine (of that number) deals to its window only when it has the
    /// turn. Returns the seat that it had at another turn.
    pub(super) fn subscribe(
        &mut self,
        session: &Arc<dyn Recipient>,
        window: Window,
        held: Load,
        turn: Option<(&Arc<Turn>, usize)>,
    ) -> Option<Seat> {
        let (before, key) = (self.largest(), session.key());
        let old = self.remove(key);
        let held = old.as_ref().map_or(held, |o| o.held);
        let stalled = old.as_ref().is_some_and(|o| o.stalled);
        let mut seat = old.and_then(|o| o.seat);
        let mut other = None;
        if !seat.as_ref().map(|seat| &seat.turn).is_some_and(|own| turn.is_some_and(|(turn, _)| Arc::ptr_eq(own, turn)))
        {
            other = seat.take();
            seat = turn.map(|(turn, engine)| Seat::new(turn.clone(), engine));
        }
        let largest = window.bytes.min(session.max_job_bytes());
        let subscription = Subscription { session: session.clone(), window, held, stalled, largest, seat };
        *self.largest.entry(largest).or_default() += 1;
        self.turns += usize::from(subscription.seat.is_some());
        self.count_in(key, &subscription);
        self.subscriptions.insert(key, subscription);
        if self.largest() > before {
            // Jobs that were too large for all sessions are below the floor.
            self.lower_floor(i64::MIN);
        }
        other
    }

    pub(super) fn remove(&mut self, key: SessionKey) -> Option<Subscription> {
        let old = self.subscriptions.remove(&key)?;
        self.count_out(key, &old);
        self.turns -= usize::from(old.seat.is_some());
        if let Some(count) = self.largest.get_mut(&old.largest) {
            *count -= 1;
            if *count == 0 {
                self.largest.remove(&old.largest);
            }
        }
        Some(old)
    }

    /// Changes the load of a session, or whether it is stalled.
    pub(super) fn change(&mut self, key: SessionKey, change: impl FnOnce(&mut Subscription)) {
        if let Some(mut subscription) = self.subscriptions.remove(&key) {
            self.count_out(key, &subscription);
            change(&mut subscription);
            self.count_in(key, &subscription);
            self.subscriptions.insert(key, subscription);
        }
    }

    fn count_in(&mut self, key: SessionKey, subscription: &Subscription) {
        self.count_seat_in(key, subscription);
        if subscription.has_room() {
            let room = subscription.room();
            if self.cap.is_some_and(|cap| room.bytes.min(subscription.largest) > cap) {
                // There is capacity for jobs that were left: they are below the floor.
                self.cap = None;
                self.lower_floor(i64::MIN);
            }
            self.open.insert((subscription.load(), key));
            self.room_jobs += u64::from(room.jobs);
            self.room_bytes += room.bytes;
        }
    }

    fn count_out(&mut self, key: SessionKey, subscription: &Subscription) {
        self.count_seat_out(key, subscription);
        if subscription.has_room() {
            let room = subscription.room();
            self.open.remove(&(subscription.load(), key));
            self.room_jobs -= u64::from(room.jobs);
            self.room_bytes -= room.bytes;
        }
    }

    /// Deals jobs to the least loaded sessions. Returns jobs that do not fit now.
    pub(super) fn deal(&mut self, mut jobs: VecDeque<LeasedJob>, dealt: &mut Dealt) -> VecDeque<LeasedJob> {
        let mut left = VecDeque::new();
        while let Some(job) = jobs.pop_front() {
            let bytes = job.weight;
            let Some(key) = self.taker(bytes) else {
                left.push_back(job);
                continue;
            };
            // Several at a time, so that a large batch is not dealt job by job.
            let share = (jobs.len() + 1).div_ceil(self.open.len().max(1)).max(1);
            let mut share_of_key = vec![job];
            let mut taken = Load { jobs: 1, bytes };
            let room = self.subscriptions[&key].room();
            while share_of_key.len() < share && taken.jobs < room.jobs {
                let fits = jobs.front().is_some_and(|j| {
                    taken.bytes + j.weight <= room.bytes && j.weight <= self.subscriptions[&key].largest
                });
                match jobs.pop_front() {
                    Some(next) if fits => {
                        taken.jobs += 1;
                        taken.bytes += next.weight;
                        share_of_key.push(next);
                    }
                    Some(next) => {
                        jobs.push_front(next);
                        break;
                    }
                    None => break,
                }
            }
            self.change(key, |s| {
                s.held.jobs += taken.jobs;
                s.held.bytes += taken.bytes;
                if let Some(seat) = &mut s.seat {
                    seat.used = true;
                }
            });
            let session = &self.subscriptions[&key].session;
            dealt.entry(key).or_insert_with(|| (session.clone(), Vec::new())).1.extend(share_of_key);
        }
        left
    }

    /// The least loaded session that can take a job of this size.
    fn taker(&self, bytes: u64) -> Option<SessionKey> {
        // Most jobs fit the first session; for a large one, more sessions are tried before it waits.
        self.open.iter().take(64).map(|(_, key)| *key).find(|key| {
            let subscription = &self.subscriptions[key];
            subscription.room().bytes >= bytes && subscription.largest >= bytes
        })
    }

    fn count_seat_in(&mut self, key: SessionKey, subscription: &Subscription) {
        let Some(seat) = &subscription.seat else { return };
        match seat.stand {
            Stand::Idle if subscription.is_willing() => drop(self.idle.insert(key)),
            Stand::Asking => self.asking_jobs += u64::from(subscription.window.jobs),
            Stand::Has if seat.wanted => drop(self.wanted_elsewhere.insert(key)),
            Stand::Idle | Stand::Waiting | Stand::Has => {}
        }
    }

    fn count_seat_out(&mut self, key: SessionKey, subscription: &Subscription) {
        let Some(seat) = &subscription.seat else { return };
        match seat.stand {
            Stand::Idle => drop(self.idle.remove(&key)),
            Stand::Asking => self.asking_jobs -= u64::from(subscription.window.jobs),
            Stand::Has => drop(self.wanted_elsewhere.remove(&key)),
            Stand::Waiting => {}
        }
    }

    /// Whether it may deal to a window soon: a claim is in progress, or jobs that go direct are being stored.
    pub(super) fn is_busy(&self) -> bool {
        self.claiming || self.reserved.jobs > 0
    }

    /// Whether the windows that it deals to, and those that it is asking for, have too little room for its ready jobs.
    pub(super) fn needs_more(&self) -> bool {
        let expected = self.room_jobs.saturating_sub(self.reserved.jobs.into()) + self.asking_jobs;
        // Heavy jobs may fit another window. And after a claim that was not short, nobody knows how many are left.
        let is_unknown = !self.hand.is_empty() || self.cap.is_some() || self.backlog == 0;
        is_unknown || expected < self.backlog
    }
}
