//! Queue for group commit: items wait here while the writer is busy, and a free writer takes them as one batch. An idle
//! broker writes a single item immediately; under load batches grow without a timer. Intake, settle and progress each
//! have a queue.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// An item of a batch queue, which knows its own size.
pub(crate) trait Weigh {
    /// Number of jobs, outcomes or reports in the item.
    fn items(&self) -> usize;
    /// Number of bytes that the item takes in the queue.
    fn bytes(&self) -> usize;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
}

/// Queue capacity that is reserved for one item. It is released on drop.
#[derive(Debug)]
pub(crate) struct Capacity {
    _items: OwnedSemaphorePermit,
    _kib: OwnedSemaphorePermit,
}

/// Error: the queue accepts no more items because the broker is stopping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed;

/// A bounded queue whose items are taken in batches.
pub(crate) struct Batcher<T> {
    queue: Mutex<Queue<T>>,
    arrived: Notify,
    items: Arc<Semaphore>,
    // Counts KiB, not bytes, because a semaphore can acquire at most `u32::MAX` permits at once.
    kib: Arc<Semaphore>,
    most: Size,
}

struct Queue<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T: Weigh> Batcher<T> {
    /// Creates a queue. Callers wait (backpressure) while it holds `most` items or bytes.
    pub(crate) fn new(most: Size) -> Self {
        let most = Size { items: most.items.clamp(1, Semaphore::MAX_PERMITS), bytes: most.bytes.max(1 << 10) };
        Self {
            queue: Mutex::new(Queue { items: VecDeque::new(), closed: false }),
            arrived: Notify::new(),
            items: Arc::new(Semaphore::new(most.items)),
            kib: Arc::new(Semaphore::new(most.bytes >> 10)),
            most,
        }
    }

    /// Waits for queue capacity, first come, first served. An item larger than the whole capacity is admitted when the
    /// queue is empty.
    pub(crate) async fn room(&self, size: Size) -> Result<Capacity, Closed> {
        let items = size.items.min(self.most.items).min(u32::MAX as usize) as u32;
        let kib = (size.bytes >> 10).min(self.most.bytes >> 10) as u32;
        let items = self.items.clone().acquire_many_owned(items).await.map_err(|_| Closed)?;
        let kib = self.kib.clone().acquire_many_owned(kib).await.map_err(|_| Closed)?;
        Ok(Capacity { _items: items, _kib: kib })
    }

    /// Queues an item. Its reserved capacity is released when the item is dropped. Returns the item if the queue is
    /// closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(item);
            }
            queue.items.push_back(item);
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits until the queue has an item. Returns the result of `of` for the first item, without taking it. Returns
    /// `None` once the queue is closed and empty.
    pub(crate) async fn first<R>(&self, of: impl Fn(&T) -> R) -> Option<R> {
        loop {
            let arrived = self.arrived.notified();
            {
                let queue = self.queue.lock();
                if let Some(first) = queue.items.front() {
                    return Some(of(first));
                }
                if queue.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// Waits for items and takes them from the queue: at most a batch, but at least one item. Returns `None` once the
    /// queue is closed and empty.
    pub(crate) async fn take(&self, batch: Size) -> Option<Vec<T>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut queue = self.queue.lock();
                let taken = take_some(&mut queue.items, batch);
                if !queue.items.is_empty() {
                    self.arrived.notify_one();
                }
                if !taken.is_empty() {
                    return Some(taken);
                }
                if queue.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// Takes all waiting items.
    pub(crate) fn take_all(&self) -> Vec<T> {
        self.queue.lock().items.drain(..).collect()
    }

    /// Closes the queue: refuses new items and callers that wait for capacity. Writers can still take the queued items.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.items.close();
        self.kib.close();
        self.arrived.notify_waiters();
        self.arrived.notify_one();
    }
}

/// Takes the first items of the queue, at most the size of a batch, but at least one.
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
        _room: Option<Capacity>,
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
    async fn take_returns_the_queued_items_up_to_the_batch_size() {
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
    async fn a_caller_waits_while_the_queue_is_full_until_queued_items_are_written() {
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
    async fn after_close_queued_items_are_still_taken_and_new_items_are_refused() {
        let batcher = Batcher::new(size(4));
        assert!(batcher.push(Item { items: 1, _room: None }).is_ok());
        batcher.close();
        assert!(batcher.push(Item { items: 1, _room: None }).is_err());
        assert!(batcher.room(size(1)).await.is_err());
        assert_eq!(batcher.take(BATCH).await.map(|taken| taken.len()), Some(1));
        assert!(batcher.take(BATCH).await.is_none());
    }
}
