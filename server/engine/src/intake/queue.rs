//! Requests on their way to the writer. The queue is bounded, and so are the requests that wait for room in it.

use std::sync::atomic::{AtomicUsize, Ordering};

use howdah_core::error::Error;

use super::{Pending, Resolved};
use crate::batch::{Batcher, Capacity, Size, Weigh};

/// Queue between the RPCs and the writer.
pub(crate) struct Queue {
    batcher: Batcher<Pending>,
    // Bytes of requests that wait for room in the queue.
    waiting_bytes: AtomicUsize,
    most_bytes: usize,
}

/// Counts the bytes of a request that waits for room in the queue, until this value is dropped.
struct Waiting<'a> {
    queue: &'a Queue,
    bytes: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.queue.waiting_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Weigh for Pending {
    fn items(&self) -> usize {
        self.jobs.len()
    }

    fn bytes(&self) -> usize {
        self.weight
    }
}

/// Memory of a queued job besides the data that its fields point to: the job itself, the separately allocated name of
/// its task type, and its entries in the arrays of a statement.
pub const JOB_BYTES: usize = size_of::<Resolved>() + 256;

/// Returns the memory of the jobs of a request.
pub(super) fn weight(jobs: &[Resolved]) -> usize {
    size_of::<Pending>() + jobs.iter().map(|job| JOB_BYTES + job.job.weight()).sum::<usize>()
}

fn stopping() -> Error {
    Error::Unavailable("the broker is stopping".into())
}

impl Queue {
    pub(super) fn new(most: Size) -> Self {
        Self { batcher: Batcher::new(most), waiting_bytes: AtomicUsize::new(0), most_bytes: most.bytes.max(1 << 10) }
    }

    /// Waits for room in the queue for a request.
    pub(super) async fn room(&self, jobs: usize, bytes: usize) -> Result<Capacity, Error> {
        let _waiting = self.may_wait(bytes)?;
        self.batcher.room(Size { items: jobs, bytes }).await.map_err(|_| stopping())
    }

    /// Queues a request that has reserved its room.
    pub(super) fn push(&self, request: Pending) -> Result<(), Error> {
        self.batcher.push(request).map_err(|_| stopping())
    }

    /// Bounds the bytes of requests that wait for room in the queue. These requests are in memory already, and
    /// thousands of them would exhaust the memory while Postgres is unreachable.
    fn may_wait(&self, bytes: usize) -> Result<Waiting<'_>, Error> {
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let waiting = Waiting { queue: self, bytes };
        if before > 0 && (before + bytes) >> 10 > self.most_bytes >> 10 {
            return Err(Error::Unavailable(format!(
                "{} MiB of enqueues wait for Postgres already; try again later",
                self.most_bytes >> 20
            )));
        }
        Ok(waiting)
    }

    /// Returns the next batch; `None` when the queue is closed and empty.
    pub(super) async fn take(&self, batch: Size) -> Option<Vec<Pending>> {
        self.batcher.take(batch).await
    }

    /// Returns all queued requests.
    pub(super) fn take_all(&self) -> Vec<Pending> {
        self.batcher.take_all()
    }

    /// Closes the queue; the writer ends after all requests are written.
    pub(super) fn close(&self) {
        self.batcher.close();
    }
}
