//! A worker's window that several engines deal to. Only the engine that has the turn deals; it counts what the others have
//! dealt. So the window holds for all of them together, whatever they do at the same moment.
//!
//! An engine with ready jobs asks for the turn. One without ready jobs gives it away at once; one with ready jobs after it
//! has dealt to the window, or after a tenth of a second in which it could have. So two backlogs take turns.
//!
//! Locks are taken in this order: that of a turn, then that of one engine's dispatch. What an engine finds under its lock
//! becomes an `Event`, which is handled without it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Dispatch, Load, SessionKey, state::Deliveries};
use crate::job::{TaskTypeName, TypeId};

/// The longest time that an engine lets the others wait while the window has room.
const MOST_KEPT: Duration = Duration::from_millis(100);

/// The turns of one worker's stream, by task type.
pub(crate) struct Turns {
    by_type: Mutex<HashMap<TaskTypeName, Arc<Turn>>>,
    common: Arc<Common>,
}

/// What all of them go by.
struct Common {
    /// The worker takes jobs.
    open: AtomicBool,
    /// Leases that the worker says it holds, by engine, while that engine has not said what they are: they count in every
    /// window.
    unknown: Vec<AtomicU32>,
    most_kept: Duration,
}

/// The turn of one type.
pub(crate) struct Turn {
    common: Arc<Common>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Engines that deal to the window.
    places: BTreeMap<usize, Place>,
    /// What the worker held in engines that left. They may come back with it.
    left: BTreeMap<usize, Load>,
    holder: Option<usize>,
    /// Engines that want the turn, in the order in which they asked.
    asked: VecDeque<usize>,
    /// Since when the holder lets others wait while the window has room.
    kept_since: Option<Instant>,
    /// A task looks at that.
    is_timed: bool,
}

/// The subscription of an engine.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) session: SessionKey,
    pub(super) type_id: TypeId,
}

/// What has happened in an engine.
pub(super) enum Event {
    /// It takes part.
    Joined(Arc<Turn>, usize, Place),
    /// It asks for the turn.
    Asks(Arc<Turn>, usize),
    /// What it holds has changed, or it may give the turn away.
    Changed(Arc<Turn>),
    /// It takes part no more; the worker held this there.
    Left(Arc<Turn>, usize, Load),
}

/// What follows from an event, when no lock is held.
#[derive(Default)]
pub(super) struct Effects {
    dealt: Vec<(Arc<Dispatch>, Deliveries)>,
    events: Vec<Event>,
}

/// Handles what has happened. The caller holds no lock.
pub(super) fn handle(events: Vec<Event>) {
    let mut events = VecDeque::from(events);
    while let Some(event) = events.pop_front() {
        let effects = event.take_place();
        for (dispatch, dealt) in effects.dealt {
            dispatch.work.notify_one();
            dispatch.deliver(dealt);
        }
        events.extend(effects.events);
    }
}

impl Turns {
    /// Those of a stream, with the leases of each engine that are not known yet. Nobody has a turn until `open`.
    pub(crate) fn new(unknown: Vec<u32>) -> Arc<Self> {
        Self::keeping(unknown, MOST_KEPT)
    }

    pub(super) fn keeping(unknown: Vec<u32>, most_kept: Duration) -> Arc<Self> {
        let unknown = unknown.into_iter().map(AtomicU32::new).collect();
        let common = Arc::new(Common { open: AtomicBool::new(false), unknown, most_kept });
        Arc::new(Self { by_type: Mutex::default(), common })
    }

    /// The turn of a type.
    pub(crate) fn of(&self, task_type: &TaskTypeName) -> Arc<Turn> {
        let mut by_type = self.by_type.lock();
        let new = || Arc::new(Turn { common: self.common.clone(), state: Mutex::default() });
        by_type.entry(task_type.clone()).or_insert_with(new).clone()
    }

    /// The worker takes jobs from now on.
    pub(crate) fn open(&self) {
        self.common.open.store(true, Ordering::Release);
        self.changed();
    }

    /// The stream ends: nobody deals any more.
    pub(crate) fn close(&self) {
        self.common.open.store(false, Ordering::Release);
    }

    /// The leases of this engine are known now, and counted where they belong.
    pub(crate) fn known(&self, engine: usize) {
        if let Some(unknown) = self.common.unknown.get(engine)
            && unknown.swap(0, Ordering::AcqRel) > 0
        {
            self.changed();
        }
    }

    fn changed(&self) {
        let turns: Vec<Event> = self.by_type.lock().values().cloned().map(Event::Changed).collect();
        handle(turns);
    }
}

impl Common {
    /// Leases of unknown types in the other engines.
    fn unknown_beside(&self, engine: usize) -> u32 {
        let beside = self.unknown.iter().enumerate().filter(|(of, _)| *of != engine);
        beside.map(|(_, unknown)| unknown.load(Ordering::Acquire)).sum()
    }
}

impl Event {
    fn take_place(self) -> Effects {
        let mut effects = Effects::default();
        match self {
            Self::Joined(turn, engine, place) => {
                let mut state = turn.state.lock();
                let asked = state.asked.contains(&engine);
                state.left.remove(&engine);
                place.joined(asked, &mut effects);
                state.places.insert(engine, place);
                turn.review(&mut state, &mut effects);
            }
            Self::Asks(turn, engine) => {
                let mut state = turn.state.lock();
                if !state.places.contains_key(&engine) || state.holder == Some(engine) {
                    return effects;
                }
                if !state.asked.contains(&engine) {
                    state.asked.push_back(engine);
                }
                turn.review(&mut state, &mut effects);
                if state.asked.contains(&engine)
                    && let Some(place) = state.places.get(&engine)
                {
                    place.wait(&mut effects);
                }
            }
            Self::Changed(turn) => turn.review(&mut turn.state.lock(), &mut effects),
            Self::Left(turn, engine, held) => {
                let mut state = turn.state.lock();
                state.places.remove(&engine);
                state.asked.retain(|asked| *asked != engine);
                state.left.insert(engine, held);
                if state.holder == Some(engine) {
                    state.holder = None;
                }
                turn.review(&mut state, &mut effects);
            }
        }
        effects
    }
}

impl Turn {
    /// Passes the turn on if it is time, and tells who has it what the worker holds elsewhere. Does the same however often
    /// it is called.
    fn review(self: &Arc<Self>, state: &mut State, effects: &mut Effects) {
        if !self.common.open.load(Ordering::Acquire) {
            return;
        }
        let next = state.next_asker();
        match state.holder {
            None => state.holder = next.or_else(|| state.places.keys().next().copied()),
            Some(holder) => {
                if next.is_some() && self.may_pass(state, holder) {
                    if let Some(place) = state.places.get(&holder) {
                        place.stand_back(effects);
                    }
                    state.holder = next;
                    state.kept_since = None;
                }
            }
        }
        let Some(holder) = state.holder else { return };
        state.asked.retain(|asked| *asked != holder);
        if state.asked.is_empty() {
            state.kept_since = None;
        }
        let others = state.held_beside(holder);
        if let Some(place) = state.places.get(&holder) {
            place.take(others, self.common.unknown_beside(holder), !state.asked.is_empty(), effects);
        }
    }

    /// Whether the holder has to pass the turn on now.
    fn may_pass(self: &Arc<Self>, state: &mut State, holder: usize) -> bool {
        let Some(place) = state.places.get(&holder) else { return true };
        let standing = place.standing();
        if standing.passes {
            return true;
        }
        if !standing.has_room {
            // There is nothing to deal for anybody.
            state.kept_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *state.kept_since.get_or_insert(now);
        if now >= since + self.common.most_kept {
            return true;
        }
        if !state.is_timed
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            state.is_timed = true;
            runtime.spawn(self.clone().watch(since + self.common.most_kept));
        }
        false
    }

    /// Looks again when somebody has waited for long enough.
    async fn watch(self: Arc<Self>, mut until: Instant) {
        loop {
            tokio::time::sleep_until(until).await;
            let now = Instant::now();
            let due = {
                let mut state = self.state.lock();
                let due = state.kept_since.map(|since| since + self.common.most_kept);
                state.is_timed = due.is_some_and(|due| due > now);
                due
            };
            match due {
                None => return,
                Some(due) if due > now => until = due,
                Some(_) => return handle(vec![Event::Changed(self)]),
            }
        }
    }
}

impl State {
    /// Who has asked first and still wants it.
    fn next_asker(&mut self) -> Option<usize> {
        while let Some(&engine) = self.asked.front() {
            if self.places.get(&engine).is_some_and(Place::still_asks) {
                return Some(engine);
            }
            self.asked.pop_front();
        }
        None
    }

    fn held_beside(&self, engine: usize) -> Load {
        // An engine whose subscription is gone is about to say that it left: nobody deals until then.
        let all = Load { jobs: u32::MAX, bytes: u64::MAX };
        let here = self.places.iter().filter(|(of, _)| **of != engine).map(|(_, place)| place.held().unwrap_or(all));
        let left = self.left.iter().filter(|(of, _)| **of != engine).map(|(_, held)| *held);
        here.chain(left).fold(Load::default(), |sum, held| Load {
            jobs: sum.jobs.saturating_add(held.jobs),
            bytes: sum.bytes.saturating_add(held.bytes),
        })
    }
}

impl Effects {
    pub(super) fn deal(&mut self, dispatch: &Arc<Dispatch>, dealt: Deliveries) {
        self.dealt.push((dispatch.clone(), dealt));
    }

    pub(super) fn add(&mut self, events: Vec<Event>) {
        self.events.extend(events);
    }
}
