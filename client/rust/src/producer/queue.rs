//! Queued jobs of a producer, the callers that wait for their results, and the splitting of refused requests.

use std::collections::VecDeque;

use howdah_proto::v1 as proto;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore, oneshot::Sender},
    time::Instant,
};

use tonic::Code;

use crate::{
    Enqueued, Error, Result, enqueue,
    telemetry::{Address, Sending},
};

use super::STOPPED;

/// Approximate overhead of a job on the wire and in memory, in bytes.
const JOB_OVERHEAD: usize = 256;

/// Approximate size of a job in bytes. It is never smaller than the encoded size.
pub(super) fn cost(job: &proto::NewJob) -> usize {
    let headers: usize = job.headers.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    let tags: usize = job.tags.iter().map(|tag| tag.len() + 4).sum();
    let trace = job.traceparent.len() + job.tracestate.len();
    job.task_type.len() + job.payload.len() + job.key.len() + headers + tags + trace + JOB_OVERHEAD
}

/// The state that producers and the pipeline share.
#[derive(Debug)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    /// Signals that jobs were queued, or that the last producer was dropped.
    pub(super) wake: Notify,
    /// Remaining capacity of the queue, in bytes.
    pub(super) room: Semaphore,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<proto::NewJob>,
    /// Waiters, in the order of the jobs.
    waiters: VecDeque<Waiter>,
    closed: bool,
}

/// A submission that waits for its result: the number of its jobs, and the destination of the result.
#[derive(Debug)]
pub(super) struct Waiter {
    jobs: usize,
    cost: u32,
    since: Instant,
    /// `None` once the result or a timeout was sent.
    reply: Option<Reply>,
    sending: Sending,
}

/// The destination of a result.
#[derive(Debug)]
pub(super) enum Reply {
    One(Sender<Result<Enqueued>>),
    All(Sender<Result<Vec<Enqueued>>>),
}

impl Reply {
    /// Sends the result. If the caller has dropped its receipt, the result is dropped.
    pub(super) fn send(self, answer: Result<Vec<Enqueued>>) {
        match self {
            Self::All(sender) => drop(sender.send(answer)),
            Self::One(sender) => drop(sender.send(answer.and_then(|jobs| {
                let first = jobs.first().copied();
                first.ok_or(STOPPED)
            }))),
        }
    }
}

impl Waiter {
    fn answer(&mut self, answer: Result<Vec<Enqueued>>) {
        if let Some(reply) = self.reply.take() {
            self.sending.ended(&answer);
            reply.send(answer);
        }
    }
}

impl Shared {
    pub(super) fn new(room: Semaphore) -> Self {
        Self { queue: Mutex::default(), wake: Notify::new(), room }
    }

    pub(super) fn push(&self, jobs: Vec<proto::NewJob>, cost: u32, reply: Reply, mut sending: Sending) -> Result<()> {
        let mut queue = self.queue.lock();
        if queue.closed {
            sending.ended(&Err(STOPPED));
            return Err(STOPPED);
        }
        let was_empty = queue.waiters.is_empty();
        let since = Instant::now();
        queue.waiters.push_back(Waiter { jobs: jobs.len(), cost, since, reply: Some(reply), sending });
        queue.jobs.extend(jobs);
        drop(queue);
        // The pipeline needs no signal if the queue was not empty, because the first submission has already woken it.
        if was_empty {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Records that the last producer was dropped, so that no more jobs will be queued.
    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.wake.notify_one();
    }

    /// Drops all waiters, whose receipts then fail, because the pipeline has ended.
    pub(super) fn abandon(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.jobs.clear();
        queue.waiters.clear();
        self.room.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().waiters.is_empty()
    }

    /// Time of the oldest queued submission; `None` if the queue is empty.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.queue.lock().waiters.front().map(|first| first.since)
    }

    /// Takes as many queued submissions as fit into one request, in order, but at least one.
    pub(super) fn take(&self, max_jobs: usize, max_bytes: usize) -> Option<Batch> {
        let mut queue = self.queue.lock();
        let (mut jobs, mut bytes, mut count) = (0, 0, 0);
        for waiter in &queue.waiters {
            let fits = jobs + waiter.jobs <= max_jobs && bytes + waiter.cost as usize <= max_bytes;
            if count > 0 && !fits {
                break;
            }
            jobs += waiter.jobs;
            bytes += waiter.cost as usize;
            count += 1;
        }
        if count == 0 {
            return None;
        }
        let waiters = queue.waiters.drain(..count).collect();
        let jobs = queue.jobs.drain(..jobs).collect();
        Some(Batch::new(jobs, waiters))
    }

    /// Fails waiters that submitted queued jobs before `before`, and drops these jobs.
    pub(super) fn expire(&self, before: Instant, error: &Error) {
        let mut queue = self.queue.lock();
        let mut freed = 0;
        while queue.waiters.front().is_some_and(|first| first.since < before) {
            let Some(mut waiter) = queue.waiters.pop_front() else {
                break;
            };
            queue.jobs.drain(..waiter.jobs);
            freed += waiter.cost as usize;
            waiter.answer(Err(error.clone()));
        }
        drop(queue);
        self.room.add_permits(freed);
    }
}

/// One request. It is repeated unchanged, with its request key, until it is answered.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) key: String,
    pub(super) jobs: Vec<proto::NewJob>,
    waiters: Vec<Waiter>,
}

impl Batch {
    fn new(jobs: Vec<proto::NewJob>, waiters: Vec<Waiter>) -> Self {
        Self { key: enqueue::new_request_key(), jobs, waiters }
    }

    /// Records the broker to which the request is sent.
    pub(super) fn at(&mut self, broker: &Address) {
        self.waiters.iter_mut().for_each(|waiter| waiter.sending.at(broker));
    }

    /// Bytes of the queue that the request occupies until it is answered.
    pub(super) fn cost(&self) -> usize {
        self.waiters.iter().map(|waiter| waiter.cost as usize).sum()
    }

    /// Time of the oldest submission that has no result yet; `None` if all have timed out.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let mut waiting = self.waiters.iter().filter(|waiter| waiter.reply.is_some());
        waiting.next().map(|first| first.since)
    }

    /// Fails waiters that submitted their jobs before `before`. The request keeps the jobs, because a request that may have
    /// arrived must be repeated unchanged.
    pub(super) fn expire(&mut self, before: Instant, error: &Error) {
        let expired = self.waiters.iter_mut().take_while(|waiter| waiter.since < before);
        for waiter in expired {
            waiter.answer(Err(error.clone()));
        }
    }

    /// Sends each waiter the results of its jobs.
    pub(super) fn resolve(mut self, mut answers: Vec<Enqueued>) {
        for (answer, job) in answers.iter_mut().zip(&self.jobs) {
            answer.was_stored_by_this_call(job.key.is_empty());
        }
        let mut answers = answers.into_iter();
        for waiter in &mut self.waiters {
            let jobs = answers.by_ref().take(waiter.jobs).collect();
            waiter.answer(Ok(jobs));
        }
    }

    /// Splits a refused request, of which nothing is stored. Fails the submission that caused the error, and returns the rest
    /// as new requests. If the error does not name a job, splits the request in two.
    pub(super) fn split(mut self, error: &Error, room: &Semaphore) -> Vec<Self> {
        let blamed = error.field().and_then(job_index).and_then(|job| self.waiter_of(job));
        if let Some((position, first_job)) = blamed {
            let mut waiter = self.waiters.remove(position);
            self.jobs.drain(first_job..first_job + waiter.jobs);
            waiter.answer(Err(rebased(error, first_job)));
            room.add_permits(waiter.cost as usize);
            if self.waiters.is_empty() {
                return Vec::new();
            }
            return vec![Self::new(self.jobs, self.waiters)];
        }
        // Errors with these codes concern the caller or the whole call, not one job. Every part of a split request would fail
        // with them too.
        let for_all = matches!(error.code(), Code::Unauthenticated | Code::Unimplemented);
        if self.waiters.len() > 1 && !for_all {
            let other_waiters = self.waiters.split_off(self.waiters.len() / 2);
            let kept = self.waiters.iter().map(|waiter| waiter.jobs).sum();
            let other_jobs = self.jobs.split_off(kept);
            return vec![Self::new(self.jobs, self.waiters), Self::new(other_jobs, other_waiters)];
        }
        room.add_permits(self.cost());
        for waiter in &mut self.waiters {
            waiter.answer(Err(error.clone()));
        }
        Vec::new()
    }

    /// Finds the submission that contains job number `job` of this request. Returns the position of its waiter, and the index
    /// of its first job.
    fn waiter_of(&self, job: usize) -> Option<(usize, usize)> {
        let mut first_job = 0;
        for (position, waiter) in self.waiters.iter().enumerate() {
            if job < first_job + waiter.jobs {
                return Some((position, first_job));
            }
            first_job += waiter.jobs;
        }
        None
    }
}

/// Parses the number 3 from `jobs[3].task_type`.
fn job_index(field: &str) -> Option<usize> {
    let (number, _) = field.strip_prefix("jobs[")?.split_once(']')?;
    number.parse().ok()
}

/// Replaces the job index in the error's field and message. The new index counts from the submission's first job,
/// `first_job`.
fn rebased(error: &Error, first_job: usize) -> Error {
    let mut error = error.clone();
    if let Error::Status(status) = &mut error
        && let Some(job) = job_index(&status.field)
    {
        let (old, new) = (format!("jobs[{job}]"), format!("jobs[{}]", job - first_job));
        status.field = status.field.replace(&old, &new);
        status.message = status.message.replace(&old, &new);
    }
    error
}
