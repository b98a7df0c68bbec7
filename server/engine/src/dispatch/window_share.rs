//! The share of this store in the windows of workers that several stores serve. Only one store at a time has the right
//! to fill a window with jobs. This module decides when this store asks for that right, and when it passes it to the
//! next store.

use std::sync::Arc;

use howdah_core::job::TypeId;

use super::{
    Dispatch, Load, SessionKey,
    fill_right::{Effects, Event, StoreSubscription},
    state::DispatchState,
    subscription::{ShareState, Subscription},
    type_queue::{Assigned, TypeQueue},
};

/// State of the store that holds the right to fill a window.
pub(super) struct HolderState {
    /// True if the store must pass the right on: it has assigned jobs since it got the right, or has no jobs to assign.
    pub(super) passes: bool,
    /// True if the window is not full.
    pub(super) has_room: bool,
}

impl DispatchState {
    /// Requests the right to fill more windows, if the windows that this store may fill have too little room for its
    /// ready jobs.
    pub(super) fn request_windows(&mut self, type_id: TypeId) {
        if self.types.get(&type_id).is_none_or(|queue| queue.idle.is_empty()) || !self.has_jobs(type_id) {
            return;
        }
        let Some(queue) = self.types.get_mut(&type_id) else { return };
        while queue.needs_more()
            && let Some(key) = queue.next_idle()
        {
            queue.last_requested = key;
            queue.set_share_state(key, ShareState::Requesting);
            let share = queue.subscription(key).and_then(|subscription| subscription.share.as_ref());
            self.events.extend(share.map(|share| Event::Requested(share.right.clone(), share.store_no)));
        }
    }

    /// Handles a change in the load of a session. The other stores must count the new load, and the holder of the right
    /// may now have to pass it on.
    pub(super) fn changed(&mut self, type_id: TypeId, session: SessionKey) {
        let Some(subscription) = self.types.get(&type_id).and_then(|queue| queue.subscription(session)) else { return };
        let Some(share) = &subscription.share else { return };
        if share.state != ShareState::Has || (share.wanted && self.holder_state(type_id, subscription).passes) {
            let right = share.right.clone();
            self.events.push(Event::Changed(right));
        }
    }

    /// Passes on the right to fill windows that other stores have requested, if this store has used the right or has no
    /// jobs to assign.
    pub(super) fn pass_right(&mut self, type_id: TypeId) {
        let Some(queue) = self.types.get(&type_id).filter(|queue| !queue.wanted_elsewhere.is_empty()) else { return };
        let wanted = queue.wanted_elsewhere.iter().filter_map(|key| queue.subscription(*key));
        let passes = wanted.filter(|subscription| self.holder_state(type_id, subscription).passes);
        let rights = passes.filter_map(|subscription| Some(subscription.share.as_ref()?.right.clone()));
        let events: Vec<Event> = rights.map(Event::Changed).collect();
        self.events.extend(events);
    }

    /// Runs `pass_right` for all task types.
    pub(super) fn pass_all_rights(&mut self) {
        let wanted = self.types.iter().filter(|(_, queue)| !queue.wanted_elsewhere.is_empty());
        let wanted: Vec<TypeId> = wanted.map(|(type_id, _)| *type_id).collect();
        wanted.into_iter().for_each(|type_id| self.pass_right(type_id));
    }

    /// Returns whether there are, or may be, jobs to assign now.
    fn has_jobs(&self, type_id: TypeId) -> bool {
        let Some(queue) = self.types.get(&type_id) else { return false };
        let claims =
            queue.ready && !queue.held_back && !queue.locked && !self.is_unreachable && !self.paused.contains(&type_id);
        !self.closed && (claims || !queue.buffer.is_empty())
    }

    fn holder_state(&self, type_id: TypeId, subscription: &Subscription) -> HolderState {
        let has_room = subscription.has_room();
        let Some((queue, share)) = self.types.get(&type_id).zip(subscription.share.as_ref()) else {
            return HolderState { passes: true, has_room };
        };
        let is_assigning = has_room && queue.is_busy();
        let has_more = subscription.is_willing() && self.has_jobs(type_id);
        HolderState { passes: !is_assigning && (share.used || !has_more), has_room }
    }
}

impl TypeQueue {
    /// Returns the next session whose window this store asks for.
    fn next_idle(&self) -> Option<SessionKey> {
        let after = self.last_requested.saturating_add(1)..;
        self.idle.range(after).next().or_else(|| self.idle.first()).copied()
    }

    fn set_share_state(&mut self, key: SessionKey, state: ShareState) {
        self.change(key, |subscription| {
            if let Some(share) = &mut subscription.share {
                share.state = state;
            }
        });
    }
}

impl StoreSubscription {
    /// Lets a store that begins to serve the window ask for the right to fill it again, if an earlier request was
    /// dropped.
    pub(super) fn on_joined(&self, has_asked: bool, effects: &mut Effects) {
        self.act(effects, |state, at| {
            if let Some(queue) = state.types.get_mut(&at.type_id)
                && queue
                    .subscription(at.session)
                    .is_some_and(|s| s.is_share_state(ShareState::Requesting) || s.is_share_state(ShareState::Waiting))
                && !has_asked
            {
                // An earlier request was dropped, because the store did not serve the window yet.
                queue.set_share_state(at.session, ShareState::Idle);
            }
            state.request_windows(at.type_id);
        });
    }

    /// Marks the store's request as queued, and lets the store ask for other windows.
    pub(super) fn wait(&self, effects: &mut Effects) {
        self.act(effects, |state, at| {
            if let Some(queue) = state.types.get_mut(&at.type_id)
                && queue.subscription(at.session).is_some_and(|s| s.is_share_state(ShareState::Requesting))
            {
                queue.set_share_state(at.session, ShareState::Waiting);
            }
            state.request_windows(at.type_id);
        });
    }

    /// Marks the right as passed on: this store stops filling the window.
    pub(super) fn give_up_right(&self, effects: &mut Effects) {
        self.act(effects, |state, at| {
            if let Some(queue) = state.types.get_mut(&at.type_id) {
                queue.change(at.session, |subscription| {
                    if let Some(share) = &mut subscription.share {
                        share.give_up();
                    }
                });
            }
            state.request_windows(at.type_id);
        });
    }

    /// Records that this store holds the right to fill the window, and assigns buffered jobs. The worker holds `others`
    /// in the other stores, and `unknown` leases of unknown task types.
    pub(super) fn take(&self, others: Load, unknown: u32, is_wanted: bool, effects: &mut Effects) {
        let mut assigned = Vec::new();
        self.act(effects, |state, at| {
            let Some(queue) = state.types.get_mut(&at.type_id) else { return };
            queue.change(at.session, |subscription| {
                let average = subscription.window.bytes / u64::from(subscription.window.jobs.max(1));
                let Some(share) = &mut subscription.share else { return };
                if share.state != ShareState::Has {
                    share.give_up();
                    share.state = ShareState::Has;
                }
                share.others = Load {
                    jobs: others.jobs.saturating_add(unknown),
                    bytes: others.bytes.saturating_add(average.saturating_mul(unknown.into())),
                };
                share.wanted = is_wanted;
            });
            let mut assigned_now = Assigned::new();
            queue.assign_buffered(&mut assigned_now);
            assigned = assigned_now.into_values().collect();
            state.queue_claim(at.type_id);
        });
        effects.assign(&self.dispatch, assigned);
    }

    /// Returns whether the store still needs the right to fill the window. If not, the store asks again later.
    pub(super) fn still_wants(&self) -> bool {
        let mut state = self.dispatch.state.lock();
        let has_jobs = state.has_jobs(self.type_id);
        let Some(queue) = state.types.get_mut(&self.type_id) else { return false };
        let Some(subscription) = queue.subscription(self.session) else { return false };
        if has_jobs && subscription.is_willing() {
            return true;
        }
        if subscription.is_share_state(ShareState::Requesting) || subscription.is_share_state(ShareState::Waiting) {
            queue.set_share_state(self.session, ShareState::Idle);
        }
        false
    }

    /// Returns the state of the holder, and records that another store has asked for the right to fill the window.
    pub(super) fn holder_state(&self) -> HolderState {
        let mut state = self.dispatch.state.lock();
        if let Some(queue) = state.types.get_mut(&self.type_id) {
            queue.change(self.session, |subscription| {
                if let Some(share) = &mut subscription.share {
                    share.wanted = true;
                }
            });
        }
        match state.types.get(&self.type_id).and_then(|queue| queue.subscription(self.session)) {
            Some(subscription) => state.holder_state(self.type_id, subscription),
            None => HolderState { passes: true, has_room: false },
        }
    }

    /// Returns the load that the worker holds in this store; `None` if the window is gone.
    pub(super) fn held(&self) -> Option<Load> {
        let state = self.dispatch.state.lock();
        Some(state.types.get(&self.type_id)?.subscription(self.session)?.held)
    }

    fn act(&self, effects: &mut Effects, act: impl FnOnce(&mut DispatchState, &Self)) {
        let mut state = self.dispatch.state.lock();
        act(&mut state, self);
        let events = std::mem::take(&mut state.events);
        drop(state);
        effects.add(events);
    }
}

impl Dispatch {
    /// Runs `act` under the dispatch lock, and handles the resulting events after the lock is released.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut DispatchState) -> T) -> T {
        let mut state = self.state.lock();
        let done = act(&mut state);
        if state.events.is_empty() {
            return done;
        }
        let events = std::mem::take(&mut state.events);
        drop(state);
        super::fill_right::handle(events);
        done
    }

    /// Makes this store serve a window that several stores serve.
    pub(super) fn join(self: &Arc<Self>, session: SessionKey, type_id: TypeId, right: (Arc<super::FillRight>, usize)) {
        let at = StoreSubscription { dispatch: self.clone(), session, type_id };
        super::fill_right::handle(vec![Event::Joined(right.0, right.1, at)]);
    }
}
