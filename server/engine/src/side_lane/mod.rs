//! Side lane: retries requests that another transaction's lock blocks, so that no other request waits for them. Intake
//! (enqueues) and settle each have a lane.
//!
//! A batch that meets a lock is moved to the lane as a whole. The lane splits the batch until it has found the locked
//! items, and writes the others at once. Locked items are retried in rotation, each for a short time, until the lock is
//! released or the item's deadline has passed. An item that needs the same resource as an earlier blocked item stays
//! behind it, which keeps the order of each key.

mod state;

use std::{future::Future, hash::Hash, sync::Arc, time::Duration};

use crate::{
    batch::{Size, Weigh},
    critical::CriticalTasks,
    store::LockWait,
};
pub use state::MOST_LOCKED;
pub(crate) use state::SideLane;

/// Minimum time between the starts of two rounds of retries, even if the database refuses all items at once.
const ROUND: Duration = Duration::from_millis(50);
/// Maximum number of items that one round retries. The next round continues with the items after these.
const TRIES: usize = 64;

/// An enqueue or outcome that a lock may block.
pub(crate) trait Item: Weigh + Send + 'static {
    /// Name of a resource that items need, such as a key.
    type Need: Clone + Eq + Hash + Send + 'static;

    /// Returns the resources that the item needs. Two items that need the same resource are written in their order.
    fn needs(&self) -> Vec<Self::Need>;

    /// Returns whether to give up the item: its deadline has passed, or its caller no longer waits.
    fn is_over(&self) -> bool;

    /// Records a description of the transactions that hold the lock, if known.
    fn held_by(&mut self, holders: Option<&str>);
}

/// Items that were not written.
pub(crate) struct Unwritten<I> {
    /// Items that need a resource which another transaction has locked.
    pub(crate) locked: Vec<I>,
    /// Items that may be locked or must be written one by one.
    pub(crate) alone: Vec<I>,
}

/// Writes the items of a side lane to the database.
pub(crate) trait Work: Send + Sync + 'static {
    /// Type of the written items.
    type Item: Item;

    /// Writes the items in their order, and answers the callers of written items. Returns the items that were not
    /// written.
    fn write(&self, items: Vec<Self::Item>, lock_wait: LockWait) -> impl Future<Output = Unwritten<Self::Item>> + Send;

    /// Returns a description of the transactions that hold the lock for which the lane's current statement waits.
    fn holders(&self) -> impl Future<Output = Option<String>> + Send;

    /// Answers the caller of an item that is not written because its deadline has passed or the broker stops.
    fn give_up(&self, item: Self::Item);
}

/// Starts the tasks of a side lane that holds at most `most`. The tasks end when the lane is closed and empty.
pub(crate) fn start<W: Work>(
    tasks: &mut CriticalTasks,
    name: &'static str,
    work: W,
    most: Size,
) -> Arc<SideLane<W::Item>> {
    let (lane, work) = (Arc::new(SideLane::new(most)), Arc::new(work));
    tasks.spawn(name, sort_loop(lane.clone(), work.clone()));
    tasks.spawn(name, retry_loop(lane.clone(), work));
    lane
}

/// Closes the side lane when dropped, which is when the last writer that adds items has ended.
pub(crate) struct Closer<I: Item>(pub(crate) Arc<SideLane<I>>);

impl<I: Item> Drop for Closer<I> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Finds out which of the queued items are blocked by a lock, and writes the others to Postgres.
async fn sort_loop<W: Work>(lane: Arc<SideLane<W::Item>>, work: Arc<W>) {
    while let Some(arrivals) = lane.arrivals().await {
        let mut todo = vec![arrivals];
        while let Some(items) = todo.pop() {
            let items = lane.park_followers(items);
            if items.is_empty() {
                continue;
            }
            let one = items.len() == 1;
            let writing = SideLane::writing(&items);
            let Unwritten { locked, alone: mut first } = work.write(items, LockWait::Short).await;
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

/// Retries locked items in rotation.
async fn retry_loop<W: Work>(lane: Arc<SideLane<W::Item>>, work: Arc<W>) {
    while lane.has_parked().await {
        let pace = tokio::time::sleep(ROUND);
        let mut freed = false;
        give_up_late(&lane, &*work);
        for id in lane.next_in_rotation(TRIES) {
            freed |= try_one(&lane, &*work, id, LockWait::Short).await;
        }
        // One item per round waits longer for its lock, so that it is written as soon as the lock is released.
        if let Some(id) = lane.next_in_rotation(1).pop() {
            let (free, ()) = tokio::join!(try_one(&lane, &*work, id, LockWait::Long), find_holders(&lane, &*work, id));
            freed |= free;
        }
        give_up_late(&lane, &*work);
        if freed {
            // The transaction that has released its lock may have blocked other items, too.
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

/// Tries to write a locked item. Returns whether it was written.
async fn try_one<W: Work>(lane: &SideLane<W::Item>, work: &W, id: u64, lock_wait: LockWait) -> bool {
    let Some(item) = lane.take(id) else { return false };
    let Unwritten { mut locked, mut alone } = work.write(vec![item], lock_wait).await;
    let rest = locked.pop().or_else(|| alone.pop());
    let free = rest.is_none();
    lane.tried(id, rest);
    free
}

/// Finds the holders of the lock while the retry's statement waits for the lock.
async fn find_holders<W: Work>(lane: &SideLane<W::Item>, work: &W, id: u64) {
    if let Some(holders) = work.holders().await {
        lane.held_by(id, holders);
    }
}
