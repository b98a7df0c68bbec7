//! Requests on their way to the writer. What has gathered is bounded, and so is what waits to gather.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Pending, Resolved};
use crate::{
    batch::{Batcher, Room, Size, Weigh},
    error::Error,
};

/// Requests between the RPCs and the writer.
pub(crate) struct Queue {
    batcher: Batcher<Pending>,
    // Bytes of requests that wait for room.
    waiting_bytes: AtomicUsize,
    most_bytes: usize,
}

/// Counts a request that waits for room.
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

/// What a job takes while it waits, besides what its fields point to: itself, its task type's name in an allocation of its
/// own, and its place in the arrays of a statement.
pub(crate) const JOB_BYTES: usize = size_of::<Resolved>() + 256;

/// What the jobs of a request take in memory.
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

    /// Room for a request, once there is some.
    pub(super) async fn room(&self, jobs: usize, bytes: usize) -> Result<Room, Error> {
        let _waiting = self.may_wait(bytes)?;
        self.batcher.room(Size { items: jobs, bytes }).await.map_err(|_| stopping())
    }

    /// Adds a request that has its room.
    pub(super) fn push(&self, request: Pending) -> Result<(), Error> {
        self.batcher.push(request).map_err(|_| stopping())
    }

    /// Requests that wait for room are in memory already, so they are bounded too: otherwise callers by the thousand
    /// would fill it while Postgres is away.
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

    /// The next batch. `None`: closed.
    pub(super) async fn take(&self, batch: Size) -> Option<Vec<Pending>> {
        self.batcher.take(batch).await
    }

    /// Everything that has gathered now.
    pub(super) fn take_all(&self) -> Vec<Pending> {
        self.batcher.take_all()
    }

    /// No more requests; the writer ends when all are written.
    pub(super) fn close(&self) {
        self.batcher.close();
    }
}
