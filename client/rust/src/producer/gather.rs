//! Gathered jobs and their waiters, and how a refused request is split.

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

/// The approximate bytes of a job on the wire and in memory, besides its own text.
const JOB_OVERHEAD: usize = 256;

/// The approximate bytes of a job, never less than on the wire.
pub(super) fn cost(job: &proto::NewJob) -> usize {
    let headers: usize = job.headers.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    let tags: usize = job.tags.iter().map(|tag| tag.len() + 4).sum();
    let trace = job.traceparent.len() + job.tracestate.len();
    job.task_type.len() + job.payload.len() + job.key.len() + headers + tags + trace + JOB_OVERHEAD
}

/// The state that producers and the pipeline share.
#[derive(Debug)]
pub(super) struct Shared {
    gathered: Mutex<Gathered>,
    /// Signals that jobs were gathered, or that the last producer is gone.
    pub(super) wake: Notify,
    /// Bytes that may still be gathered.
    pub(super) room: Semaphore,
}

#[derive(Debug, Default)]
struct Gathered {
    jobs: VecDeque<proto::NewJob>,
    /// In the order of the jobs.
    waiters: VecDeque<Waiter>,
    closed: bool,
}

/// Jobs that were submitted together, and the waiter for their result.
#[derive(Debug)]
pub(super) struct Waiter {
    jobs: usize,
    cost: u32,
    since: Instant,
    /// `None` once it was answered.
    reply: Option<Reply>,
    sending: Sending,
}

/// Where an answer goes.
#[derive(Debug)]
pub(super) enum Reply {
    One(Sender<Result<Enqueued>>),
    All(Sender<Result<Vec<Enqueued>>>),
}

impl Reply {
    /// Sends the answer. The waiter may have gone away.
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
        Self { gathered: Mutex::default(), wake: Notify::new(), room }
    }

    pub(super) fn push(&self, jobs: Vec<proto::NewJob>, cost: u32, reply: Reply, mut sending: Sending) -> Result<()> {
        let mut gathered = self.gathered.lock();
        if gathered.closed {
            sending.ended(&Err(STOPPED));
            return Err(STOPPED);
        }
        let was_empty = gathered.waiters.is_empty();
        let since = Instant::now();
        gathered.waiters.push_back(Waiter { jobs: jobs.len(), cost, since, reply: Some(reply), sending });
        gathered.jobs.extend(jobs);
        drop(gathered);
        // The caller that found it empty has woken the pipeline already.
        if was_empty {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// No more jobs will come.
    pub(super) fn close(&self) {
        self.gathered.lock().closed = true;
        self.wake.notify_one();
    }

    /// The pipeline has ended: there will be no answers.
    pub(super) fn abandon(&self) {
        let mut gathered = self.gathered.lock();
        gathered.closed = true;
        gathered.jobs.clear();
        gathered.waiters.clear();
        self.room.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.gathered.lock().closed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gathered.lock().waiters.is_empty()
    }

    /// When the oldest gathered job was submitted.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.gathered.lock().waiters.front().map(|first| first.since)
    }

    /// Takes the jobs that fit into one request, in order; always at least one submission.
    pub(super) fn take(&self, max_jobs: usize, max_bytes: usize) -> Option<Batch> {
        let mut gathered = self.gathered.lock();
        let (mut jobs, mut bytes, mut count) = (0, 0, 0);
        for waiter in &gathered.waiters {
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
        let waiters = gathered.waiters.drain(..count).collect();
        let jobs = gathered.jobs.drain(..jobs).collect();
        Some(Batch::new(jobs, waiters))
    }

    /// Answers waiters that have waited since before `before` without their jobs having been sent.
    pub(super) fn expire(&self, before: Instant, error: &Error) {
        let mut gathered = self.gathered.lock();
        let mut freed = 0;
        while gathered.waiters.front().is_some_and(|first| first.since < before) {
            let Some(mut waiter) = gathered.waiters.pop_front() else {
                break;
            };
            gathered.jobs.drain(..waiter.jobs);
            freed += waiter.cost as usize;
            waiter.answer(Err(error.clone()));
        }
        drop(gathered);
        self.room.add_permits(freed);
    }
}

/// One request. It is repeated unchanged, under its key, until it is answered.
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

    /// It is sent to this broker.
    pub(super) fn at(&mut self, broker: &Address) {
        self.waiters.iter_mut().for_each(|waiter| waiter.sending.at(broker));
    }

    /// The bytes to free when it is answered.
    pub(super) fn cost(&self) -> usize {
        self.waiters.iter().map(|waiter| waiter.cost as usize).sum()
    }

    /// When the oldest submission with a waiter was made; `None` if there is no waiter any more.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let mut waiting = self.waiters.iter().filter(|waiter| waiter.reply.is_some());
        waiting.next().map(|first| first.since)
    }

    /// Answers waiters that have waited since before `before`. Their jobs stay: a request that may have arrived must be
    /// repeated unchanged.
    pub(super) fn expire(&mut self, before: Instant, error: &Error) {
        let late = self.waiters.iter_mut().take_while(|waiter| waiter.since < before);
        for waiter in late {
            waiter.answer(Err(error.clone()));
        }
    }

    /// Answers all waiters.
    pub(super) fn resolve(mut self, mut answers: Vec<Enqueued>) {
        for (answer, job) in answers.iter_mut().zip(&self.jobs) {
            answer.was_stored_by_this_call(job.key.is_empty());
        }
        let mut answers = answers.into_iter();
        for waiter in &mut self.waiters {
            let own = answers.by_ref().take(waiter.jobs).collect();
            waiter.answer(Ok(own));
        }
    }

    /// The broker refused the request, so nothing of it is stored. Answers the submission that caused it, and returns
    /// the rest as new requests. If the error does not name the cause, the request is split in two.
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
        // The error concerns the caller, not the jobs: no part of them would be accepted.
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

    /// The submission that job number `job` belongs to, and the number of its first job.
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

/// The 3 of `jobs[3].task_type`.
fn job_index(field: &str) -> Option<usize> {
    let (number, _) = field.strip_prefix("jobs[")?.split_once(']')?;
    number.parse().ok()
}

/// The error as if the submission that begins with job `first_job` had been its own request.
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
