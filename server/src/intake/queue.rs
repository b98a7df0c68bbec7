//! What has gathered: bounded in jobs and bytes; when it is full, the callers wait.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use super::Pending;
use crate::error::Error;

/// Requests between the RPCs and the writers.
pub(crate) struct Queue {
    gathered: Mutex<Gathered>,
    arrived: Notify,
    jobs: Semaphore,
    // In KiB: a semaphore's permits are 32-bit in one acquire.
    kib: Semaphore,
    // Bytes of requests that wait for room.
    waiting: AtomicUsize,
    most_jobs: usize,
    most_kib: usize,
}

/// Counts a request that waits for room.
struct Waiting<'a> {
    queue: &'a Queue,
    bytes: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Gathered {
    requests: VecDeque<Pending>,
    closed: bool,
}

impl Queue {
    pub(super) fn new(most_jobs: usize, most_bytes: usize) -> Self {
        let most_kib = (most_bytes >> 10).max(1);
        Self {
            gathered: Mutex::default(),
            arrived: Notify::new(),
            jobs: Semaphore::new(most_jobs),
            kib: Semaphore::new(most_kib),
            waiting: AtomicUsize::new(0),
            most_jobs,
            most_kib,
        }
    }

    /// Adds a request, once there is room for it.
    pub(super) async fn push(&self, request: Pending) -> Result<(), Error> {
        let stopping = |_| Error::Unavailable("the broker is stopping".into());
        let _waiting = self.may_wait(request.weight)?;
        let jobs = self.jobs.acquire_many(self.job_permits(request.jobs.len())).await.map_err(stopping)?;
        let kib = self.kib.acquire_many(self.kib_permits(request.weight)).await.map_err(stopping)?;
        {
            let mut gathered = self.gathered.lock();
            if gathered.closed {
                return Err(Error::Unavailable("the broker is stopping".into()));
            }
            gathered.requests.push_back(request);
        }
        // They come back in `written`.
        jobs.forget();
        kib.forget();
        self.arrived.notify_one();
        Ok(())
    }

    /// A request in memory that is not gathered yet: these are bounded too, or callers by the thousand
    /// would fill the memory while Postgres is away.
    fn may_wait(&self, bytes: usize) -> Result<Waiting<'_>, Error> {
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let waiting = Waiting { queue: self, bytes };
        if before > 0 && (before + bytes) >> 10 > self.most_kib {
            return Err(Error::Unavailable(format!(
                "{} MiB of enqueues wait for Postgres already; try again later",
                self.most_kib >> 10
            )));
        }
        Ok(waiting)
    }

    /// Everything that has gathered, up to the bounds, and at least one request. `None`: closed.
    pub(super) async fn take(&self, most_jobs: usize, most_bytes: usize) -> Option<Vec<Pending>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut gathered = self.gathered.lock();
                let batch = take_some(&mut gathered.requests, most_jobs, most_bytes);
                if !gathered.requests.is_empty() {
                    self.arrived.notify_one();
                }
                if !batch.is_empty() {
                    return Some(batch);
                }
                if gathered.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// All that has gathered now.
    pub(super) fn take_all(&self) -> Vec<Pending> {
        self.gathered.lock().requests.drain(..).collect()
    }

    /// A batch was answered: its room is free again.
    pub(super) fn written(&self, requests: &[(usize, usize)]) {
        for &(jobs, bytes) in requests {
            self.jobs.add_permits(self.job_permits(jobs) as usize);
            self.kib.add_permits(self.kib_permits(bytes) as usize);
        }
    }

    /// No more requests; the writers end when all is written.
    pub(super) fn close(&self) {
        self.gathered.lock().closed = true;
        self.jobs.close();
        self.arrived.notify_waiters();
        self.arrived.notify_one();
    }

    // A request larger than the whole queue may pass when it is alone.
    fn job_permits(&self, jobs: usize) -> u32 {
        jobs.min(self.most_jobs) as u32
    }

    fn kib_permits(&self, bytes: usize) -> u32 {
        (bytes >> 10).min(self.most_kib) as u32
    }
}

fn take_some(requests: &mut VecDeque<Pending>, most_jobs: usize, most_bytes: usize) -> Vec<Pending> {
    let (mut jobs, mut bytes, mut count) = (0, 0, 0);
    for request in requests.iter() {
        jobs += request.jobs.len();
        bytes += request.weight;
        if count > 0 && (jobs > most_jobs || bytes > most_bytes) {
            break;
        }
        count += 1;
    }
    requests.drain(..count).collect()
}
