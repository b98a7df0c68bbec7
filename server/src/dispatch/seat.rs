//! This engine's side of turns: when it asks for one, when it may give one away, and what it deals to.

use std::sync::Arc;

use super::{
    Dispatch, Load, SessionKey,
    state::DispatchState,
    subscription::{Stand, Subscription},
    turn::{Effects, Event, Place},
    type_queue::{Dealt, TypeQueue},
};
use crate::job::TypeId;

/// How the holder of a turn stands.
pub(super) struct Standing {
    /// It has dealt, or has nothing to deal.
    pub(super) passes: bool,
    /// The window is not full.
    pub(super) has_room: bool,
}

impl DispatchState {
    /// Asks for windows, if those that it may deal to have too little room for its ready jobs.
    pub(super) fn ask(&mut self, type_id: TypeId) {
        if self.types.get(&type_id).is_none_or(|queue| queue.idle.is_empty()) || !self.has_jobs(type_id) {
            return;
        }
        let Some(queue) = self.types.get_mut(&type_id) else { return };
        while queue.needs_more()
            && let Some(key) = queue.next_idle()
        {
            queue.asked_last = key;
            queue.stand(key, Stand::Asking);
            let seat = queue.subscription(key).and_then(|subscription| subscription.seat.as_ref());
            self.events.extend(seat.map(|seat| Event::Asks(seat.turn.clone(), seat.engine)));
        }
    }

    /// The load of a session has changed: what others count, and whether the turn goes on, may change with it.
    pub(super) fn changed(&mut self, type_id: TypeId, session: SessionKey) {
        let Some(subscription) = self.types.get(&type_id).and_then(|queue| queue.subscription(session)) else { return };
        let Some(seat) = &subscription.seat else { return };
        if seat.stand != Stand::Has || (seat.wanted && self.standing(type_id, subscription).passes) {
            let turn = seat.turn.clone();
            self.events.push(Event::Changed(turn));
        }
    }

    /// Gives away what other engines have asked for, as far as it is time.
    pub(super) fn pass(&mut self, type_id: TypeId) {
        let Some(queue) = self.types.get(&type_id).filter(|queue| !queue.wanted_elsewhere.is_empty()) else { return };
        let wanted = queue.wanted_elsewhere.iter().filter_map(|key| queue.subscription(*key));
        let passes = wanted.filter(|subscription| self.standing(type_id, subscription).passes);
        let turns = passes.filter_map(|subscription| Some(subscription.seat.as_ref()?.turn.clone()));
        let events: Vec<Event> = turns.map(Event::Changed).collect();
        self.events.extend(events);
    }

    /// The same of every type.
    pub(super) fn pass_all(&mut self) {
        let wanted = self.types.iter().filter(|(_, queue)| !queue.wanted_elsewhere.is_empty());
        let wanted: Vec<TypeId> = wanted.map(|(type_id, _)| *type_id).collect();
        wanted.into_iter().for_each(|type_id| self.pass(type_id));
    }

    /// Whether there are, or may be, jobs to deal now.
    fn has_jobs(&self, type_id: TypeId) -> bool {
        let Some(queue) = self.types.get(&type_id) else { return false };
        let claims =
            queue.ready && !queue.held_back && !queue.locked && !self.is_away && !self.paused.contains(&type_id);
        !self.closed && (claims || !queue.hand.is_empty())
    }

    fn standing(&self, type_id: TypeId, subscription: &Subscription) -> Standing {
        let has_room = subscription.has_room();
        let Some((queue, seat)) = self.types.get(&type_id).zip(subscription.seat.as_ref()) else {
            return Standing { passes: true, has_room };
        };
        let is_dealing = has_room && queue.is_busy();
        let has_more = subscription.is_willing() && self.has_jobs(type_id);
        Standing { passes: !is_dealing && (seat.used || !has_more), has_room }
    }
}

impl TypeQueue {
    /// The next session to ask for.
    fn next_idle(&self) -> Option<SessionKey> {
        let after = self.asked_last.saturating_add(1)..;
        self.idle.range(after).next().or_else(|| self.idle.first()).copied()
    }

    fn stand(&mut self, key: SessionKey, stand: Stand) {
        self.change(key, |subscription| {
            if let Some(seat) = &mut subscription.seat {
                seat.stand = stand;
            }
        });
    }
}

impl Place {
    /// It takes part from now on.
    pub(super) fn joined(&self, has_asked: bool, effects: &mut Effects) {
        self.act(effects, |state, place| {
            if let Some(queue) = state.types.get_mut(&place.type_id)
                && queue
                    .subscription(place.session)
                    .is_some_and(|s| s.stands(Stand::Asking) || s.stands(Stand::Waiting))
                && !has_asked
            {
                // It asked before it took part.
                queue.stand(place.session, Stand::Idle);
            }
            state.ask(place.type_id);
        });
    }

    /// It has to wait: others may be asked for.
    pub(super) fn wait(&self, effects: &mut Effects) {
        self.act(effects, |state, place| {
            if let Some(queue) = state.types.get_mut(&place.type_id)
                && queue.subscription(place.session).is_some_and(|s| s.stands(Stand::Asking))
            {
                queue.stand(place.session, Stand::Waiting);
            }
            state.ask(place.type_id);
        });
    }

    /// It deals no more.
    pub(super) fn stand_back(&self, effects: &mut Effects) {
        self.act(effects, |state, place| {
            if let Some(queue) = state.types.get_mut(&place.type_id) {
                queue.change(place.session, |subscription| {
                    if let Some(seat) = &mut subscription.seat {
                        seat.stand_back();
                    }
                });
            }
            state.ask(place.type_id);
        });
    }

    /// It has the turn. The others hold this much, and so many jobs of unknown types.
    pub(super) fn take(&self, others: Load, unknown: u32, is_wanted: bool, effects: &mut Effects) {
        let mut dealt = Vec::new();
        self.act(effects, |state, place| {
            let Some(queue) = state.types.get_mut(&place.type_id) else { return };
            queue.change(place.session, |subscription| {
                let average = subscription.window.bytes / u64::from(subscription.window.jobs.max(1));
                let Some(seat) = &mut subscription.seat else { return };
                if seat.stand != Stand::Has {
                    seat.stand_back();
                    seat.stand = Stand::Has;
                }
                seat.others = Load {
                    jobs: others.jobs.saturating_add(unknown),
                    bytes: others.bytes.saturating_add(average.saturating_mul(unknown.into())),
                };
                seat.wanted = is_wanted;
            });
            let mut of_hand = Dealt::new();
            queue.deal_hand(&mut of_hand);
            dealt = of_hand.into_values().collect();
            state.enlist(place.type_id);
        });
        effects.deal(&self.dispatch, dealt);
    }

    /// Whether it still needs the turn that it asked for. If not, it will ask again.
    pub(super) fn still_asks(&self) -> bool {
        let mut state = self.dispatch.state.lock();
        let has_jobs = state.has_jobs(self.type_id);
        let Some(queue) = state.types.get_mut(&self.type_id) else { return false };
        let Some(subscription) = queue.subscription(self.session) else { return false };
        if has_jobs && subscription.is_willing() {
            return true;
        }
        if subscription.stands(Stand::Asking) || subscription.stands(Stand::Waiting) {
            queue.stand(self.session, Stand::Idle);
        }
        false
    }

    /// How it stands, now that somebody has asked.
    pub(super) fn standing(&self) -> Standing {
        let mut state = self.dispatch.state.lock();
        if let Some(queue) = state.types.get_mut(&self.type_id) {
            queue.change(self.session, |subscription| {
                if let Some(seat) = &mut subscription.seat {
                    seat.wanted = true;
                }
            });
        }
        match state.types.get(&self.type_id).and_then(|queue| queue.subscription(self.session)) {
            Some(subscription) => state.standing(self.type_id, subscription),
            None => Standing { passes: true, has_room: false },
        }
    }

    /// What the worker holds here. `None`: it has no such window any more.
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
    /// Does this under the lock; what turns have to know follows without it.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut DispatchState) -> T) -> T {
        let mut state = self.state.lock();
        let done = act(&mut state);
        if state.events.is_empty() {
            return done;
        }
        let events = std::mem::take(&mut state.events);
        drop(state);
        super::turn::handle(events);
        done
    }

    /// Takes part in the turn of a window that several engines deal to.
    pub(super) fn join(self: &Arc<Self>, session: SessionKey, type_id: TypeId, turn: (Arc<super::Turn>, usize)) {
        let place = Place { dispatch: self.clone(), session, type_id };
        super::turn::handle(vec![Event::Joined(turn.0, turn.1, place)]);
    }
}
