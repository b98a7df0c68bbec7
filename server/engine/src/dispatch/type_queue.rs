//! One task type: the known state of its queue in the database, and the sessions with capacity for it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use howdah_core::job::LeasedJob;

use super::{
    Load, Recipient, SessionKey, Window,
    buffer::BufferedJob,
    fill_right::FillRight,
    prefetch::Prefetch,
    subscription::{ShareState, Subscription, WindowShare},
};

/// Assigned jobs by session.
pub(super) type Assigned = HashMap<SessionKey, (Arc<dyn Recipient>, Vec<LeasedJob>)>;

#[allow(clippy::struct_excessive_bools)] // these are independent facts
pub(super) struct TypeQueue {
    subscriptions: HashMap<SessionKey, Subscription>,
    // Sessions with capacity, the least loaded first.
    pub(super) open: BTreeSet<(u32, SessionKey)>,
    room_jobs: u64,
    room_bytes: u64,
    // Capacity that is reserved for direct enqueues while their jobs are being stored.
    reserved: Load,
    // Number of subscriptions whose windows other stores may fill as well.
    shared_windows: usize,
    /// Sessions for whose shared window this store may request the right to fill it.
    pub(super) idle: BTreeSet<SessionKey>,
    /// Session whose window this store requested last. Requests rotate through the sessions.
    pub(super) last_requested: SessionKey,
    /// Sessions whose windows this store may fill, and for which another store has requested that right.
    pub(super) wanted_elsewhere: BTreeSet<SessionKey>,
    // Total size, in jobs, of the windows for which a request by this store is not handled yet.
    requested_jobs: u64,
    // Number of subscriptions by the size in bytes of the largest job that they can take.
    largest: BTreeMap<u64, u32>,
    /// True if there may be ready jobs.
    pub(super) ready: bool,
    /// True while a limit holds back the ready jobs, until a wake-up.
    pub(super) held_back: bool,
    /// True for a short time after a claim found the limit locked by another transaction. The type is not claimed
    /// meanwhile, even if jobs become ready.
    pub(super) locked: bool,
    /// True while the type is queued for a claim.
    pub(super) queued: bool,
    /// True while a claim of the type is in progress.
    pub(super) claiming: bool,
    /// Number of ready jobs as far as this broker knows: at least the announced jobs.
    pub(super) backlog: u64,
    /// Number of jobs announced since the last claim began.
    pub(super) woken_jobs: u64,
    /// Number of jobs that claims have returned so far.
    pub(super) claimed_total: u64,
    /// Rank at which the next claim starts: all ready jobs of a lower rank have been claimed.
    pub(super) floor: i64,
    /// Lowest rank announced since the last claim began.
    pub(super) woken: Option<i64>,
    /// Maximum size in bytes of jobs to claim, because a larger job did not fit. It applies until there is more
    /// capacity.
    cap: Option<u64>,
    /// Leased jobs that do not fit now. They are assigned first when there is more capacity.
    pub(super) buffer: VecDeque<BufferedJob>,
    /// Statistics that determine how many jobs are prefetched.
    pub(super) prefetch: Prefetch,
    /// Number of releases of prefetched jobs in progress. Until the jobs are ready again, no job is claimed or goes
    /// direct, so that no later job overtakes them.
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
            shared_windows: 0,
            idle: BTreeSet::new(),
            last_requested: 0,
            wanted_elsewhere: BTreeSet::new(),
            requested_jobs: 0,
            largest: BTreeMap::new(),
            // Ready jobs are assumed until a claim finds none.
            ready: true,
            held_back: false,
            locked: false,
            queued: false,
            claiming: false,
            backlog: u64::MAX,
            woken_jobs: 0,
            claimed_total: 0,
            floor: i64::MIN,
            woken: None,
            cap: None,
            buffer: VecDeque::new(),
            prefetch: Prefetch::default(),
            returning: 0,
            average_bytes: 256.0,
        }
    }
}

impl TypeQueue {
    pub(super) fn is_unused(&self) -> bool {
        self.subscriptions.is_empty() && self.buffer.is_empty()
    }

    pub(super) fn subscription(&self, key: SessionKey) -> Option<&Subscription> {
        self.subscriptions.get(&key)
    }

    /// Returns whether other stores may fill some of the windows.
    pub(super) fn has_shared_windows(&self) -> bool {
        self.shared_windows > 0
    }

    /// Returns the number of sessions that subscribe to the type, including those whose window is 0 for now.
    pub(super) fn subscribers(&self) -> usize {
        self.subscriptions.len()
    }

    /// Returns the number of sessions with an open window.
    pub(super) fn workers(&self) -> usize {
        self.subscriptions.values().filter(|subscription| subscription.window.jobs > 0).count()
    }

    pub(super) fn room_jobs(&self) -> u64 {
        self.room_jobs
    }

    pub(super) fn window(&self, key: SessionKey) -> Option<Window> {
        self.subscriptions.get(&key).map(|subscription| subscription.window)
    }

    /// Returns the number of jobs to claim: the jobs that fit, and jobs to prefetch.
    pub(super) fn wanted(&self) -> u64 {
        self.fitting() + self.wanted_to_prefetch()
    }

    /// Returns how many jobs fit into the free capacity: by free slots, and by free bytes at the average job size.
    fn fitting(&self) -> u64 {
        let jobs = self.room_jobs.saturating_sub(self.reserved.jobs.into());
        if jobs == 0 || !self.buffer.is_empty() {
            return 0;
        }
        let bytes = self.room_bytes.saturating_sub(self.reserved.bytes);
        let by_bytes = (bytes as f64 / self.average_bytes.max(1.0)) as u64;
        jobs.min(by_bytes.max(1))
    }

    /// Returns whether jobs may be leased while they are stored, because they fit and overtake no other job.
    pub(super) fn may_go_direct(&self, load: Load, heaviest: u64) -> bool {
        !self.ready
            && !self.claiming
            && self.returning == 0
            && self.buffer.is_empty()
            && self.is_room_for_direct(load)
            && heaviest <= self.largest_wanted()
    }

    /// Returns whether the load fits into the free capacity that is not reserved. Windows that another store has
    /// requested do not count, so that they soon pass to that store.
    fn is_room_for_direct(&self, load: Load) -> bool {
        let wanted = self.wanted_elsewhere.iter().filter_map(|key| self.subscriptions.get(key)?.open_room());
        let (jobs, bytes) = wanted
            .fold((self.room_jobs, self.room_bytes), |(jobs, bytes), w| (jobs - u64::from(w.jobs), bytes - w.bytes));
        jobs >= u64::from(self.reserved.jobs) + u64::from(load.jobs) && bytes >= self.reserved.bytes + load.bytes
    }

    /// Returns whether the next claims will take all ready jobs, because the backlog fits into the free capacity. Then
    /// direct enqueues wait for the claims, because they may go direct afterwards.
    pub(super) fn is_soon_empty(&self) -> bool {
        let fitting = self.fitting();
        (self.ready || self.claiming) && fitting > 0 && self.backlog <= fitting
    }

    pub(super) fn reserve(&mut self, load: Load) {
        self.reserved.jobs += load.jobs;
        self.reserved.bytes += load.bytes;
    }

    pub(super) fn unreserve(&mut self, load: Load) {
        // The subtraction saturates, because the queue may have been recreated since the reservation.
        self.reserved.jobs = self.reserved.jobs.saturating_sub(load.jobs);
        self.reserved.bytes = self.reserved.bytes.saturating_sub(load.bytes);
    }

    /// Returns the size in bytes of the largest job that a worker of this broker can take.
    fn largest(&self) -> u64 {
        self.largest.last_key_value().map_or(0, |(bytes, _)| *bytes)
    }

    /// Returns the size in bytes of the largest job to claim now.
    pub(super) fn largest_wanted(&self) -> u64 {
        self.largest().min(self.cap.unwrap_or(u64::MAX))
    }

    /// Stops claims of jobs of this size or more, because such a job could not be assigned in time. Other brokers may
    /// claim these jobs, and smaller jobs may overtake them.
    pub(super) fn skip_heavy(&mut self, weight: u64) {
        if self.session_for(weight).is_none() {
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

    /// Adds or replaces a subscription. `right` is set if several stores serve the window: the right to fill it, and
    /// the number of this store. Returns the old window share if it belongs to another `FillRight`.
    pub(super) fn subscribe(
        &mut self,
        session: &Arc<dyn Recipient>,
        window: Window,
        held: Load,
        right: Option<(&Arc<FillRight>, usize)>,
    ) -> Option<WindowShare> {
        let (before, key) = (self.largest(), session.key());
        let old = self.remove(key);
        let held = old.as_ref().map_or(held, |o| o.held);
        let stalled = old.as_ref().is_some_and(|o| o.stalled);
        let mut share = old.and_then(|o| o.share);
        let mut other = None;
        if !share
            .as_ref()
            .map(|share| &share.right)
            .is_some_and(|own| right.is_some_and(|(right, _)| Arc::ptr_eq(own, right)))
        {
            other = share.take();
            share = right.map(|(right, store_no)| WindowShare::new(right.clone(), store_no));
        }
        let largest = window.bytes.min(session.max_job_bytes());
        let subscription = Subscription { session: session.clone(), window, held, stalled, largest, share };
        *self.largest.entry(largest).or_default() += 1;
        self.shared_windows += usize::from(subscription.share.is_some());
        self.count_in(key, &subscription);
        self.subscriptions.insert(key, subscription);
        if self.largest() > before {
            // This session takes larger jobs than all others. Claims have skipped such jobs, so the next claim starts
            // at the lowest rank again.
            self.lower_floor(i64::MIN);
        }
        other
    }

    pub(super) fn remove(&mut self, key: SessionKey) -> Option<Subscription> {
        let old = self.subscriptions.remove(&key)?;
        self.count_out(key, &old);
        self.shared_windows -= usize::from(old.share.is_some());
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
        self.count_share_in(key, subscription);
        if subscription.has_room() {
            let room = subscription.room();
            if self.cap.is_some_and(|cap| room.bytes.min(subscription.largest) > cap) {
                // This session has room for the large jobs that claims have skipped, so the next claim starts at the
                // lowest rank again.
                self.cap = None;
                self.lower_floor(i64::MIN);
            }
            self.open.insert((subscription.load(), key));
            self.room_jobs += u64::from(room.jobs);
            self.room_bytes += room.bytes;
        }
    }

    fn count_out(&mut self, key: SessionKey, subscription: &Subscription) {
        self.count_share_out(key, subscription);
        if subscription.has_room() {
            let room = subscription.room();
            self.open.remove(&(subscription.load(), key));
            self.room_jobs -= u64::from(room.jobs);
            self.room_bytes -= room.bytes;
        }
    }

    /// Assigns jobs to the least loaded sessions. Returns jobs that do not fit now.
    pub(super) fn assign(&mut self, mut jobs: VecDeque<LeasedJob>, assigned: &mut Assigned) -> VecDeque<LeasedJob> {
        let mut left = VecDeque::new();
        while let Some(job) = jobs.pop_front() {
            let bytes = job.weight;
            let Some(key) = self.session_for(bytes) else {
                left.push_back(job);
                continue;
            };
            // Gives the session its share of the batch in one step, which is faster than job by job.
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
                if let Some(share) = &mut s.share {
                    share.used = true;
                }
            });
            let session = &self.subscriptions[&key].session;
            assigned.entry(key).or_insert_with(|| (session.clone(), Vec::new())).1.extend(share_of_key);
        }
        left
    }

    /// Returns the least loaded session that can take a job of this size.
    fn session_for(&self, bytes: u64) -> Option<SessionKey> {
        // Most jobs fit the first session. For a large job, up to 64 sessions are tried before it waits.
        self.open.iter().take(64).map(|(_, key)| *key).find(|key| {
            let subscription = &self.subscriptions[key];
            subscription.room().bytes >= bytes && subscription.largest >= bytes
        })
    }

    fn count_share_in(&mut self, key: SessionKey, subscription: &Subscription) {
        let Some(share) = &subscription.share else { return };
        match share.state {
            ShareState::Idle if subscription.is_willing() => drop(self.idle.insert(key)),
            ShareState::Requesting => self.requested_jobs += u64::from(subscription.window.jobs),
            ShareState::Has if share.wanted => drop(self.wanted_elsewhere.insert(key)),
            ShareState::Idle | ShareState::Waiting | ShareState::Has => {}
        }
    }

    fn count_share_out(&mut self, key: SessionKey, subscription: &Subscription) {
        let Some(share) = &subscription.share else { return };
        match share.state {
            ShareState::Idle => drop(self.idle.remove(&key)),
            ShareState::Requesting => self.requested_jobs -= u64::from(subscription.window.jobs),
            ShareState::Has => drop(self.wanted_elsewhere.remove(&key)),
            ShareState::Waiting => {}
        }
    }

    /// Returns whether a window may be filled soon: a claim is in progress, or jobs that go direct are being stored.
    pub(super) fn is_busy(&self) -> bool {
        self.claiming || self.reserved.jobs > 0
    }

    /// Returns whether the windows that this store may fill or is asking for have too little room for its ready jobs.
    pub(super) fn needs_more(&self) -> bool {
        let expected = self.room_jobs.saturating_sub(self.reserved.jobs.into()) + self.requested_jobs;
        // Jobs that are too large for these windows may fit another one. A backlog of 0 means that the number of
        // remaining jobs is unknown.
        let is_unknown = !self.buffer.is_empty() || self.cap.is_some() || self.backlog == 0;
        is_unknown || expected < self.backlog
    }
}
