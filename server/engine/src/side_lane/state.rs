//! The items of a side lane: new items, and parked items that wait for locks.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Item;
use crate::batch::{Size, Weigh, take_some};

/// Maximum number of items in a side lane, whatever their size, because each round visits all of them.
pub const MOST_LOCKED: usize = 50_000;
/// Maximum size of a batch of new items.
const BATCH: Size = Size { items: 2_000, bytes: 8 << 20 };

/// A side lane: lock-blocked items, limited in number of items, jobs and bytes.
pub(crate) struct SideLane<I: Item> {
    state: Mutex<State<I>>,
    /// Copy of `State::count`, to be read without locking the mutex.
    count: AtomicUsize,
    arrived: Notify,
    changed: Notify,
    most: Size,
}

struct State<I: Item> {
    arrivals: VecDeque<I>,
    /// Parked items in the order of their arrival.
    parked: VecDeque<Parked<I>>,
    /// Number of items in the lane that need each resource.
    needs: HashMap<I::Need, usize>,
    count: usize,
    size: Size,
    next_id: u64,
    last_tried: u64,
    sort_again: bool,
    closed: bool,
}

/// An item that a lock blocks, or that waits behind such an item.
struct Parked<I: Item> {
    id: u64,
    needs: Vec<I::Need>,
    size: Size,
    /// `None` while the item is being written.
    item: Option<I>,
    holders: Option<String>,
}

/// Resources and sizes of items that are being written. After the write, they are subtracted from the lane's totals.
pub(super) struct Writing<N> {
    needs: Vec<N>,
    size: Size,
    count: usize,
}

impl<I: Item> State<I> {
    fn enter(&mut self, needs: &[I::Need], size: Size) {
        self.count += 1;
        self.size.items += size.items;
        self.size.bytes += size.bytes;
        for need in needs {
            *self.needs.entry(need.clone()).or_default() += 1;
        }
    }

    fn leave(&mut self, needs: &[I::Need], size: Size, count: usize) {
        self.count -= count;
        self.size.items -= size.items;
        self.size.bytes -= size.bytes;
        for need in needs {
            if let Some(times) = self.needs.get_mut(need) {
                *times -= 1;
                if *times == 0 {
                    self.needs.remove(need);
                }
            }
        }
    }

    fn has_room(&self, size: Size, most: Size) -> bool {
        // An empty lane accepts an item of any size: the queue has already admitted the item.
        self.count == 0
            || (self.count < MOST_LOCKED
                && self.size.items + size.items <= most.items
                && self.size.bytes + size.bytes <= most.bytes)
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.parked.binary_search_by_key(&id, |parked| parked.id).ok()
    }

    fn park(&mut self, mut item: I) {
        item.held_by(None);
        self.next_id += 1;
        let (id, needs, size) = (self.next_id, item.needs(), size(&item));
        self.parked.push_back(Parked { id, needs, size, item: Some(item), holders: None });
    }
}

impl<I: Item> SideLane<I> {
    pub(super) fn new(most: Size) -> Self {
        let state = State {
            arrivals: VecDeque::new(),
            parked: VecDeque::new(),
            needs: HashMap::new(),
            count: 0,
            size: Size { items: 0, bytes: 0 },
            next_id: 0,
            last_tried: 0,
            sort_again: false,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            count: AtomicUsize::new(0),
            arrived: Notify::new(),
            changed: Notify::new(),
            most,
        }
    }

    /// Moves those items into the lane that need the same resource as an item already in the lane, so that they are
    /// written after it. Returns the other items, and the items for which the lane has no room.
    pub(crate) fn divert(&self, items: Vec<I>) -> (Vec<I>, Vec<I>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return (items, Vec::new());
        }
        let is_behind = |item: &I| {
            let needs = item.needs();
            let state = self.state.lock();
            needs.iter().any(|need| state.needs.contains_key(need))
        };
        let (behind, others) = items.into_iter().partition(is_behind);
        (others, self.add(behind))
    }

    /// Returns whether an item in the lane needs this resource.
    pub(crate) fn is_needed(&self, need: &I::Need) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.state.lock().needs.contains_key(need)
    }

    /// Adds lock-blocked items to the lane. Returns the items for which the lane has no room.
    #[must_use]
    pub(crate) fn add(&self, items: Vec<I>) -> Vec<I> {
        let mut refused = Vec::new();
        let mut state = self.state.lock();
        for item in items {
            let size = size(&item);
            if state.has_room(size, self.most) {
                state.enter(&item.needs(), size);
                state.arrivals.push_back(item);
            } else {
                refused.push(item);
            }
        }
        self.count.store(state.count, Ordering::Release);
        drop(state);
        self.arrived.notify_one();
        refused
    }

    /// Closes the lane. Locked items are given up.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_one();
        self.changed.notify_one();
    }

    /// Waits for items to sort: new items, or all parked items after a lock was released. Returns `None` when the lane
    /// is closed and nothing is left to sort.
    pub(super) async fn arrivals(&self) -> Option<Vec<I>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut state = self.state.lock();
                if std::mem::take(&mut state.sort_again) {
                    let (idle, tried) = state.parked.drain(..).partition(|parked| parked.item.is_some());
                    state.parked = tried;
                    let mut again: VecDeque<I> =
                        VecDeque::into_iter(idle).filter_map(|parked: Parked<I>| parked.item).collect();
                    again.append(&mut state.arrivals);
                    state.arrivals = again;
                }
                let items = take_some(&mut state.arrivals, BATCH);
                if !state.arrivals.is_empty() {
                    self.arrived.notify_one();
                }
                if !items.is_empty() {
                    return Some(items);
                }
                if state.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// Parks items that need the same resource as a parked item; returns the others.
    pub(super) fn park_followers(&self, items: Vec<I>) -> Vec<I> {
        let mut state = self.state.lock();
        let mut parked: HashSet<I::Need> =
            state.parked.iter().flat_map(|parked| parked.needs.iter().cloned()).collect();
        let mut others = Vec::with_capacity(items.len());
        for item in items {
            let needs = item.needs();
            if needs.iter().any(|need| parked.contains(need)) {
                parked.extend(needs);
                state.park(item);
            } else {
                others.push(item);
            }
        }
        others
    }

    /// Returns the resources and sizes of items that are about to be written.
    pub(super) fn writing(items: &[I]) -> Writing<I::Need> {
        let mut writing = Writing { needs: Vec::new(), size: Size { items: 0, bytes: 0 }, count: items.len() };
        for item in items {
            writing.needs.extend(item.needs());
            writing.size.items += item.items();
            writing.size.bytes += item.bytes();
        }
        writing
    }

    /// Subtracts written items from the lane's totals. `rest` are the items of the batch that were not written.
    pub(super) fn written<'a>(&self, writing: &Writing<I::Need>, rest: impl Iterator<Item = &'a I>) {
        let mut state = self.state.lock();
        state.leave(&writing.needs, writing.size, writing.count);
        for item in rest {
            state.enter(&item.needs(), size(item));
        }
        self.count.store(state.count, Ordering::Release);
        let done = state.closed && state.count == 0;
        drop(state);
        if done {
            self.changed.notify_one();
        }
    }

    /// Parks locked items.
    pub(super) fn park(&self, items: Vec<I>) {
        if items.is_empty() {
            return;
        }
        {
            let mut state = self.state.lock();
            items.into_iter().for_each(|item| state.park(item));
        }
        self.changed.notify_one();
    }

    /// Waits until an item is parked. Returns false when the lane is closed and empty.
    pub(super) async fn has_parked(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.lock();
                if !state.parked.is_empty() {
                    return true;
                }
                if state.closed && state.count == 0 {
                    return false;
                }
            }
            changed.await;
        }
    }

    /// Returns the next parked items to try, in rotation. Skips items behind an earlier item that needs the same
    /// resource.
    pub(super) fn next_in_rotation(&self, most: usize) -> Vec<u64> {
        let mut state = self.state.lock();
        let mut before: HashSet<&I::Need> = HashSet::new();
        let mut first = Vec::new();
        for parked in &state.parked {
            if parked.needs.iter().all(|need| !before.contains(need)) {
                first.push(parked.id);
            }
            before.extend(&parked.needs);
        }
        let after = first.partition_point(|id| *id <= state.last_tried);
        first.rotate_left(after);
        first.truncate(most);
        state.last_tried = first.last().copied().unwrap_or_default();
        first
    }

    /// Takes an item out of the lane to try to write it.
    pub(super) fn take(&self, id: u64) -> Option<I> {
        let mut state = self.state.lock();
        let at = state.position(id)?;
        state.parked[at].item.take()
    }

    /// Removes an item after it was written, or puts it back if it is still locked.
    pub(super) fn tried(&self, id: u64, item: Option<I>) {
        let mut state = self.state.lock();
        let Some(at) = state.position(id) else { return };
        if let Some(mut item) = item {
            let parked = &mut state.parked[at];
            item.held_by(parked.holders.as_deref());
            parked.item = Some(item);
        } else if let Some(parked) = state.parked.remove(at) {
            state.leave(&parked.needs, parked.size, 1);
            self.count.store(state.count, Ordering::Release);
        }
    }

    /// Records the holders of the lock for which an item waits.
    pub(super) fn held_by(&self, id: u64, holders: String) {
        let mut state = self.state.lock();
        if let Some(at) = state.position(id) {
            let parked = &mut state.parked[at];
            parked.holders = Some(holders);
            let holders = parked.holders.as_deref();
            if let Some(item) = &mut parked.item {
                item.held_by(holders);
            }
        }
    }

    /// Removes and returns the items to give up: those past their deadline, or all if the lane is closed.
    pub(super) fn over(&self) -> Vec<I> {
        let mut state = self.state.lock();
        let closed = state.closed;
        let mut over = Vec::new();
        let mut at = 0;
        while at < state.parked.len() {
            let is_over = state.parked[at].item.as_ref().is_some_and(|item| closed || item.is_over());
            match is_over.then(|| state.parked.remove(at)).flatten() {
                Some(parked) => {
                    state.leave(&parked.needs, parked.size, 1);
                    over.extend(parked.item);
                }
                None => at += 1,
            }
        }
        self.count.store(state.count, Ordering::Release);
        over
    }

    /// Requests that all parked items are tried again in their order, because a lock was released.
    pub(super) fn sort_again(&self) {
        self.state.lock().sort_again = true;
        self.arrived.notify_one();
    }
}

fn size(item: &impl Weigh) -> Size {
    Size { items: item.items(), bytes: item.bytes() }
}
