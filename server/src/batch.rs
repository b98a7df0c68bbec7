//! Natural batching: items that arrive while a writer is busy gather here, and a free writer takes all of them. When
//! idle, that is one item at once; under load, batches grow without a timer (group commit). Intake, settle and progress
//! each have one.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The size of an item.
pub(crate) trait Weigh {
    /// Jobs, outcomes or reports in it.
    fn items(&self) -> usize;
    /// Bytes that it holds.
    fn bytes(&self) -> usize;
}

/// Items and bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
}

/// Capacity for an item; freed when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _items: OwnedSemaphorePermit,
    _kib: OwnedSemaphorePermit,
}

/// The batcher accepts no more: the broker is stopping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed;

/// Gathers items.
pub(crate) struct Batcher<T> {
    gathered: Mutex<Gathered<T>>,
    arrived: Notify,
    items: Arc<Semaphore>,
    // In KiB, since one acquire takes a 32-bit number of permits.
    kib: Arc<Semaphore>,
    most: Size,
}

struct Gathered<T> {
    queue: VecDeque<T>,
    closed: bool,
}

impl<T: Weigh> Batcher<T> {
    /// `most`: how much may gather before callers wait.
    pub(crate) fn new(most: Size) -> Self {
        let most = Size { items: most.items.clamp(1, Semaphore::MAX_PERMITS), bytes: most.bytes.max(1 << 10) };
        Self {
            gathered: Mutex::new(Gathered { queue: VecDeque::new(), closed: false }),
            arrived: Notify::new(),
            items: Arc::new(Semaphore::new(most.items)),
            kib: Arc::new(Semaphore::new(most.bytes >> 10)),
            most,
        }
    }

    /// Waits for capacity, in the order of the callers. An item that is larger than the whole capacity may pass when
    /// it is alone.
    pub(crate) async fn room(&self, size: Size) -> Result<Room, Closed> {
        let items = size.items.min(self.most.items).min(u32::MAX as usize) as u32;
        let kib = (size.bytes >> 10).min(self.most.bytes >> 10) as u32;
        let items = self.items.clone().acquire_many_owned(items).await.map_err(|_| Closed)?;
        let kib = self.kib.clone().acquire_many_owned(kib).await.map_err(|_| Closed)?;
        Ok(Room { _items: items, _kib: kib })
    }

    /// Adds an item, which holds its capacity until it is dropped. Returns it if the batcher is closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        {
            let mut gathered = self.gathered.lock();
            if gathered.closed {
                return Err(item);
            }
            gathered.queue.push_back(item);
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits until something has gathered, and returns what this says of the first item. `None`: closed, and nothing is left.
    pub(crate) async fn first<R>(&self, of: impl Fn(&T) -> R) -> Option<R> {
        loop {
            let arrived = self.arrived.notified();
            {
                let gathered = self.gathered.lock();
                if let Some(first) = gathered.queue.front() {
                    return Some(of(first));
                }
                if gathered.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// The gathered items, up to the size of a batch, but at least one. `None`: closed, and nothing is left.
    pub(crate) async fn take(&self, batch: Size) -> Option<Vec<T>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut gathered = self.gathered.lock();
                let taken = take_some(&mut gathered.queue, batch);
                if !gathered.queue.is_empty() {
                    self.arrived.notify_one();
                }
                if !taken.is_empty() {
                    return Some(taken);
                }
                if gathered.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// All items that have gathered.
    pub(crate) fn take_all(&self) -> Vec<T> {
        self.gathered.lock().queue.drain(..).collect()
    }

    /// Accepts no more. Writers go on until nothing is left; callers that wait for capacity are refused.
    pub(crate) fn close(&self) {
        self.gathered.lock().closed = true;
        self.items.close();
        self.kib.close();
        self.arrived.notify_waiters();
        self.arrived.notify_one();
    }
}

/// The first items, up to the size of a batch, but at least one.
pub(crate) fn take_some<T: Weigh>(queue: &mut VecDeque<T>, batch: Size) -> Vec<T> {
    let (mut items, mut bytes, mut count) = (0, 0, 0);
    for item in queue.iter() {
        items += item.items();
        bytes += item.bytes();
        if count > 0 && (items > batch.items || bytes > batch.bytes) {
            break;
        }
        count += 1;
    }
    queue.drain(..count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Item {
        items: usize,
        _room: Option<Room>,
    }

    impl Weigh for Item {
        fn items(&self) -> usize {
            self.items
        }

        fn bytes(&self) -> usize {
            self.items << 10
        }
    }

    const BATCH: Size = Size { items: 4, bytes: 1 << 20 };

    fn size(items: usize) -> Size {
        Size { items, bytes: items << 10 }
    }

    #[tokio::test]
    async fn a_batch_is_what_has_gathered_up_to_its_size() {
        let batcher = Batcher::new(size(100));
        for items in [1, 2, 3, 9] {
            let room = batcher.room(size(items)).await.ok();
            assert!(batcher.push(Item { items, _room: room }).is_ok());
        }
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(batcher.take(BATCH).await.unwrap().iter().map(|item| item.items).collect::<Vec<_>>());
        }
        assert_eq!(taken, [vec![1, 2], vec![3], vec![9]]);
    }

    #[tokio::test]
    async fn a_caller_waits_until_an_item_before_it_is_written() {
        let batcher = Batcher::new(size(4));
        let room = batcher.room(size(4)).await.ok();
        assert!(batcher.push(Item { items: 4, _room: room }).is_ok());
        let next = batcher.room(size(1));
        tokio::pin!(next);
        assert!(futures::poll!(&mut next).is_pending());
        drop(batcher.take(BATCH).await);
        assert!(next.await.is_ok());
    }

    #[tokio::test]
    async fn after_close_what_has_gathered_is_still_taken_and_nothing_else_comes() {
        let batcher = Batcher::new(size(4));
        assert!(batcher.push(Item { items: 1, _room: None }).is_ok());
        batcher.close();
        assert!(batcher.push(Item { items: 1, _room: None }).is_err());
        assert!(batcher.room(size(1)).await.is_err());
        assert_eq!(batcher.take(BATCH).await.map(|taken| taken.len()), Some(1));
        assert!(batcher.take(BATCH).await.is_none());
    }
}
