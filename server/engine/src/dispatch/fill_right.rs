//! The right to fill a worker's window that several stores serve. Only the store that holds this right (`FillRight`) assigns
//! jobs to the window, and it counts the jobs that the other stores have assigned. So the window bounds all stores
//! together, even if they act concurrently.
//!
//! A store with ready jobs asks for the right. A holder without ready jobs passes it on immediately. A holder with
//! ready jobs passes it on after it has assigned jobs to the window, or after a tenth of a second in which the window
//! had room. So two stores with a backlog alternate.
//!
//! Lock order: the lock of a `FillRight` first, then the lock of one store's dispatch. A change found under the dispatch
//! lock becomes an `Event`, which is handled after that lock is released.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use howdah_core::job::{TaskTypeName, TypeId};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Dispatch, Load, SessionKey, state::Deliveries};

/// Maximum time that a holder lets other stores wait while the window has room.
const MAX_HOLD: Duration = Duration::from_millis(100);

/// Rights to fill the windows of one worker's stream, by task type.
pub struct FillRights {
    by_type: Mutex<HashMap<TaskTypeName, Arc<FillRight>>>,
    common: Arc<Common>,
}

/// State that all windows of a stream share.
struct Common {
    /// True while the worker accepts jobs on this stream.
    open: AtomicBool,
    /// Number of leases that the worker reported when it connected, by store, until the store has looked them up. They
    /// count in every window, because their task types are unknown.
    unknown: Vec<AtomicU32>,
    max_hold: Duration,
}

/// The right to fill the window of one task type.
pub struct FillRight {
    common: Arc<Common>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Subscriptions of the stores that serve the window.
    subscriptions: BTreeMap<usize, StoreSubscription>,
    /// Load that the worker still holds in stores that no longer serve the window, by store. Such a store may serve the
    /// window again.
    left: BTreeMap<usize, Load>,
    holder: Option<usize>,
    /// Stores that wait for the right to fill this window with jobs, in the order of their requests.
    requesters: VecDeque<usize>,
    /// Time when other stores began to wait for the holder while the window had room.
    held_since: Option<Instant>,
    /// True while a timer task waits for `max_hold` to pass.
    is_timed: bool,
}

/// The subscription of one store that serves the window.
#[derive(Clone)]
pub(super) struct StoreSubscription {
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) session: SessionKey,
    pub(super) type_id: TypeId,
}

/// A change in one store. The `usize` is the number of the store within the worker's stream.
pub(super) enum Event {
    /// The store begins to serve the window.
    Joined(Arc<FillRight>, usize, StoreSubscription),
    /// The store asks for the right to fill the window.
    Requested(Arc<FillRight>, usize),
    /// The load that the worker holds has changed, or the holder may pass on the right to fill the window.
    Changed(Arc<FillRight>),
    /// The store no longer serves the window. The `Load` is what the worker still holds in this store.
    Left(Arc<FillRight>, usize, Load),
}

/// Effects of an event, to be applied after all locks are released.
#[derive(Default)]
pub(super) struct Effects {
    assigned: Vec<(Arc<Dispatch>, Deliveries)>,
    events: Vec<Event>,
}

/// Handles events and the events that follow from them. The caller must hold no lock.
pub(super) fn handle(events: Vec<Event>) {
    let mut events = VecDeque::from(events);
    while let Some(event) = events.pop_front() {
        let effects = event.apply();
        for (dispatch, assigned) in effects.assigned {
            dispatch.work.notify_one();
            dispatch.deliver(assigned);
        }
        events.extend(effects.events);
    }
}

impl FillRights {
    /// Creates the rights to fill the windows of a stream. `unknown` is the number of leases per store whose task types
    /// are not known yet. No store gets a right before `open`.
    pub fn new(unknown: Vec<u32>) -> Arc<Self> {
        Self::with_max_hold(unknown, MAX_HOLD)
    }

    pub(super) fn with_max_hold(unknown: Vec<u32>, max_hold: Duration) -> Arc<Self> {
        let unknown = unknown.into_iter().map(AtomicU32::new).collect();
        let common = Arc::new(Common { open: AtomicBool::new(false), unknown, max_hold });
        Arc::new(Self { by_type: Mutex::default(), common })
    }

    /// Returns the right to fill the window of a task type.
    pub(crate) fn right(&self, task_type: &TaskTypeName) -> Arc<FillRight> {
        let mut by_type = self.by_type.lock();
        let new = || Arc::new(FillRight { common: self.common.clone(), state: Mutex::default() });
        by_type.entry(task_type.clone()).or_insert_with(new).clone()
    }

    /// Lets the stores assign jobs: the worker accepts jobs from now on.
    pub fn open(&self) {
        self.common.open.store(true, Ordering::Release);
        self.changed();
    }

    /// Ends all assignments, because the stream ends.
    pub fn close(&self) {
        self.common.open.store(false, Ordering::Release);
    }

    /// Reports that the leases of this store are known and counted in their windows.
    pub(crate) fn known(&self, store_no: usize) {
        if let Some(unknown) = self.common.unknown.get(store_no)
            && unknown.swap(0, Ordering::AcqRel) > 0
        {
            self.changed();
        }
    }

    fn changed(&self) {
        let rights: Vec<Event> = self.by_type.lock().values().cloned().map(Event::Changed).collect();
        handle(rights);
    }
}

impl Common {
    /// Returns the number of leases of unknown task types in the other stores.
    fn unknown_beside(&self, store_no: usize) -> u32 {
        let beside = self.unknown.iter().enumerate().filter(|(other, _)| *other != store_no);
        beside.map(|(_, unknown)| unknown.load(Ordering::Acquire)).sum()
    }
}

impl Event {
    fn apply(self) -> Effects {
        let mut effects = Effects::default();
        match self {
            Self::Joined(right, store_no, subscription) => {
                let mut state = right.state.lock();
                let asked = state.requesters.contains(&store_no);
                state.left.remove(&store_no);
                subscription.on_joined(asked, &mut effects);
                state.subscriptions.insert(store_no, subscription);
                right.review(&mut state, &mut effects);
            }
            Self::Requested(right, store_no) => {
                let mut state = right.state.lock();
                if !state.subscriptions.contains_key(&store_no) || state.holder == Some(store_no) {
                    return effects;
                }
                if !state.requesters.contains(&store_no) {
                    state.requesters.push_back(store_no);
                }
                right.review(&mut state, &mut effects);
                if state.requesters.contains(&store_no)
                    && let Some(subscription) = state.subscriptions.get(&store_no)
                {
                    subscription.wait(&mut effects);
                }
            }
            Self::Changed(right) => right.review(&mut right.state.lock(), &mut effects),
            Self::Left(right, store_no, held) => {
                let mut state = right.state.lock();
                state.subscriptions.remove(&store_no);
                state.requesters.retain(|asked| *asked != store_no);
                state.left.insert(store_no, held);
                if state.holder == Some(store_no) {
                    state.holder = None;
                }
                right.review(&mut state, &mut effects);
            }
        }
        effects
    }
}

impl FillRight {
    /// Passes the right to the next store if the holder must give it up, and tells the holder the load in the other
    /// stores. Idempotent.
    fn review(self: &Arc<Self>, state: &mut State, effects: &mut Effects) {
        if !self.common.open.load(Ordering::Acquire) {
            return;
        }
        let next = state.next_requester();
        match state.holder {
            None => state.holder = next.or_else(|| state.subscriptions.keys().next().copied()),
            Some(holder) => {
                if next.is_some() && self.may_pass(state, holder) {
                    if let Some(subscription) = state.subscriptions.get(&holder) {
                        subscription.give_up_right(effects);
                    }
                    state.holder = next;
                    state.held_since = None;
                }
            }
        }
        let Some(holder) = state.holder else { return };
        state.requesters.retain(|asked| *asked != holder);
        if state.requesters.is_empty() {
            state.held_since = None;
        }
        let others = state.held_beside(holder);
        if let Some(subscription) = state.subscriptions.get(&holder) {
            subscription.take(others, self.common.unknown_beside(holder), !state.requesters.is_empty(), effects);
        }
    }

    /// Returns whether the holder has to pass on the right to fill the window now.
    fn may_pass(self: &Arc<Self>, state: &mut State, holder: usize) -> bool {
        let Some(subscription) = state.subscriptions.get(&holder) else { return true };
        let holder_state = subscription.holder_state();
        if holder_state.passes {
            return true;
        }
        if !holder_state.has_room {
            // A full window has no room for any store, so the limit on the holder's time does not run.
            state.held_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *state.held_since.get_or_insert(now);
        if now >= since + self.common.max_hold {
            return true;
        }
        if !state.is_timed
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            state.is_timed = true;
            runtime.spawn(self.clone().watch(since + self.common.max_hold));
        }
        false
    }

    /// Timer task: reviews the right to fill the window once another store has waited for `max_hold`.
    async fn watch(self: Arc<Self>, mut until: Instant) {
        loop {
            tokio::time::sleep_until(until).await;
            let now = Instant::now();
            let due = {
                let mut state = self.state.lock();
                let due = state.held_since.map(|since| since + self.common.max_hold);
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
    /// Returns the first store in the queue that still needs the right to fill the window.
    fn next_requester(&mut self) -> Option<usize> {
        while let Some(&store_no) = self.requesters.front() {
            if self.subscriptions.get(&store_no).is_some_and(StoreSubscription::still_wants) {
                return Some(store_no);
            }
            self.requesters.pop_front();
        }
        None
    }

    fn held_beside(&self, store_no: usize) -> Load {
        // A store whose session is gone will leave soon. Until then its load counts as a full window, so no store
        // assigns jobs.
        let all = Load { jobs: u32::MAX, bytes: u64::MAX };
        let here = self
            .subscriptions
            .iter()
            .filter(|(other, _)| **other != store_no)
            .map(|(_, subscription)| subscription.held().unwrap_or(all));
        let left = self.left.iter().filter(|(other, _)| **other != store_no).map(|(_, held)| *held);
        here.chain(left).fold(Load::default(), |sum, held| Load {
            jobs: sum.jobs.saturating_add(held.jobs),
            bytes: sum.bytes.saturating_add(held.bytes),
        })
    }
}

impl Effects {
    pub(super) fn assign(&mut self, dispatch: &Arc<Dispatch>, assigned: Deliveries) {
        self.assigned.push((dispatch.clone(), assigned));
    }

    pub(super) fn add(&mut self, events: Vec<Event>) {
        self.events.extend(events);
    }
}
