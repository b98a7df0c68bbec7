//! Work that met the lock of another transaction, so that nothing else waits for it. Intake and settle each have a lane.
//!
//! A batch that meets a lock comes here as a whole. It is split until it is known which items are locked: the others are
//! written at once. What is locked is tried again in turns, each time for a moment, until its lock goes or its time is
//! over. An item that needs what an earlier one waits for stays behind it, so that the order of each key is kept.

mod state;

use std::{future::Future, hash::Hash, sync::Arc, time::Duration};

use crate::{
    batch::{Size, Weigh},
    critical::CriticalTasks,
    store::Patience,
};
pub(crate) use state::{MOST_LOCKED, SideLane};

/// The least time between two rounds of trying, also where no statement waits for a lock.
const ROUND: Duration = Duration::from_millis(50);
/// The most items that are tried in a round; then it is the turn of others.
const TRIES: usize = 64;

/// Something that may be locked.
pub(crate) trait Item: Weigh + Send + 'static {
    /// Names what it needs.
    type Need: Clone + Eq + Hash + Send + 'static;

    /// What it needs: of two items with a need in common, the later one is not written before the other.
    fn needs(&self) -> Vec<Self::Need>;

    /// Whether it has waited for as long as it may, or its caller has gone.
    fn is_over(&self) -> bool;

    /// Takes note of who holds the lock, if that is known.
    fn held_by(&mut self, holders: Option<&str>);
}

/// Items that were not written.
pub(crate) struct Unwritten<I> {
    /// They are locked.
    pub(crate) locked: Vec<I>,
    /// Some of them are locked, or they must be written one by one.
    pub(crate) apart: Vec<I>,
}

/// The work of a lane.
pub(crate) trait Work: Send + Sync + 'static {
    /// What is written.
    type Item: Item;

    /// Writes these in their order, and answers them; returns the others.
    fn write(&self, items: Vec<Self::Item>, patience: Patience) -> impl Future<Output = Unwritten<Self::Item>> + Send;

    /// Who holds what the statement of the lane waits for that begins now.
    fn holders(&self) -> impl Future<Output = Option<String>> + Send;

    /// Answers an item whose time is over, or whose broker stops.
    fn give_up(&self, item: Self::Item);
}

/// Starts the tasks of a lane with room for this much. They end when it is closed and nothing is left.
pub(crate) fn start<W: Work>(
    tasks: &mut CriticalTasks,
    name: &'static str,
    work: W,
    most: Size,
) -> Arc<SideLane<W::Item>> {
    let (lane, work) = (Arc::new(SideLane::new(most)), Arc::new(work));
    tasks.spawn(name, sort_always(lane.clone(), work.clone()));
    tasks.spawn(name, try_always(lane.clone(), work));
    lane
}

/// Closes a lane when the last writer that adds to it has ended.
pub(crate) struct Closer<I: Item>(pub(crate) Arc<SideLane<I>>);

impl<I: Item> Drop for Closer<I> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Finds out which of the arrivals are locked.
async fn sort_always<W: Work>(lane: Arc<SideLane<W::Item>>, work: Arc<W>) {
    while let Some(arrivals) = lane.arrivals().await {
        let mut todo = vec![arrivals];
        while let Some(items) = todo.pop() {
            let items = lane.park_followers(items);
            if items.is_empty() {
                continue;
            }
            let one = items.len() == 1;
            let writing = SideLane::writing(&items);
            let Unwritten { locked, apart: mut first } = work.write(items, Patience::Short).await;
            lane.written(&writing, locked.iter().chain(&first));
            lane.park(locked);
            if one {
                lane.park(first);
            } else {
                let second = first.split_off(first.len().div_ceil(2));
                todo.extend([second, first].into_iter().filter(|half| !half.is_empty()));
            }
        }
    }
}

/// Tries what is locked, in turns.
async fn try_always<W: Work>(lane: Arc<SideLane<W::Item>>, work: Arc<W>) {
    while lane.has_parked().await {
        let pace = tokio::time::sleep(ROUND);
        let mut freed = false;
        give_up_late(&lane, &*work);
        for id in lane.next_turns(TRIES) {
            freed |= try_one(&lane, &*work, id, Patience::Short).await;
        }
        // One of them waits for longer: it goes on as soon as its lock has gone.
        if let Some(id) = lane.next_turns(1).pop() {
            let (free, ()) = tokio::join!(try_one(&lane, &*work, id, Patience::Long), find_holders(&lane, &*work, id));
            freed |= free;
        }
        give_up_late(&lane, &*work);
        if freed {
            // The transaction that ended may have held others too.
            lane.sort_again();
        }
        pace.await;
    }
}

fn give_up_late<W: Work>(lane: &SideLane<W::Item>, work: &W) {
    for item in lane.over() {
        work.give_up(item);
    }
}

/// Returns whether it is written.
async fn try_one<W: Work>(lane: &SideLane<W::Item>, work: &W, id: u64, patience: Patience) -> bool {
    let Some(item) = lane.take(id) else { return false };
    let Unwritten { mut locked, mut apart } = work.write(vec![item], patience).await;
    let rest = locked.pop().or_else(|| apart.pop());
    let free = rest.is_none();
    lane.tried(id, rest);
    free
}

/// While it waits: for whom?
async fn find_holders<W: Work>(lane: &SideLane<W::Item>, work: &W, id: u64) {
    if let Some(holders) = work.holders().await {
        lane.held_by(id, holders);
    }
}
