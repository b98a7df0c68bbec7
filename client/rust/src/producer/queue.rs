//! Submissions of a producer, the requests made of them, and the splitting of refused requests.

use std::{collections::VecDeque, sync::Arc};

use howdah_proto::v1 as proto;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot::Sender},
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
    pub(super) room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Queue {
    submissions: VecDeque<Submission>,
    is_closed: bool,
}

/// Jobs that are stored together, and the destination of their result.
#[derive(Debug)]
pub(super) struct Submission {
    jobs: Vec<proto::NewJob>,
    /// The reserved bytes of the queue. They are free again when the submission is dropped.
    room: OwnedSemaphorePermit,
    since: Instant,
    /// `None` once the result or a timeout was sent.
    reply: Option<Sender<Result<Vec<Enqueued>>>>,
    sending: Sending,
}

impl Submission {
    pub(super) fn new(
        jobs: Vec<proto::NewJob>,
        room: OwnedSemaphorePermit,
        reply: Sender<Result<Vec<Enqueued>>>,
        sending: Sending,
    ) -> Self {
        Self { jobs, room, since: Instant::now(), reply: Some(reply), sending }
    }

    /// Sends the result. Without effect if the caller has dropped its receipt, or has already got a result.
    fn answer(&mut self, answer: Result<Vec<Enqueued>>) {
        if let Some(reply) = self.reply.take() {
            self.sending.ended(&answer);
            let _ = reply.send(answer);
        }
    }
}

impl Shared {
    pub(super) fn new(capacity: u32) -> Self {
        Self { queue: Mutex::default(), wake: Notify::new(), room: Arc::new(Semaphore::new(capacity as usize)) }
    }

    pub(super) fn push(&self, mut submission: Submission) -> Result<()> {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            submission.answer(Err(STOPPED));
            return Err(STOPPED);
        }
        let was_empty = queue.submissions.is_empty();
        queue.submissions.push_back(submission);
        drop(queue);
        // The pipeline needs no signal if the queue was not empty, because the first submission has already woken it.
        if was_empty {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Records that the last producer was dropped, so that no more jobs will be queued.
    pub(super) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// Drops all submissions, whose receipts then fail, because the pipeline has ended.
    pub(super) fn abandon(&self) {
        *self.queue.lock() = Queue { submissions: VecDeque::new(), is_closed: true };
        self.room.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.queue.lock().is_closed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().submissions.is_empty()
    }

    /// Time of the oldest queued submission; `None` if the queue is empty.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.queue.lock().submissions.front().map(|first| first.since)
    }

    /// Takes as many queued submissions as fit into one request, in order, but at least one.
    pub(super) fn take(&self, max_jobs: usize, max_bytes: usize) -> Option<Batch> {
        let mut queue = self.queue.lock();
        let (mut jobs, mut bytes) = (0, 0);
        let fits = |submission: &&Submission| {
            let is_first = jobs == 0;
            jobs += submission.jobs.len();
            bytes += submission.room.num_permits();
            is_first || (jobs <= max_jobs && bytes <= max_bytes)
        };
        let count = queue.submissions.iter().take_while(fits).count();
        (count > 0).then(|| Batch::new(queue.submissions.drain(..count).collect()))
    }

    /// Fails and drops the queued submissions from before `before`.
    pub(super) fn expire(&self, before: Instant, error: &Error) {
        let mut queue = self.queue.lock();
        let count = queue.submissions.partition_point(|submission| submission.since < before);
        queue.submissions.drain(..count).for_each(|mut submission| submission.answer(Err(error.clone())));
    }
}

/// One request. It is repeated unchanged, with its request key, until it is answered.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) key: String,
    submissions: Vec<Submission>,
}

impl Batch {
    fn new(submissions: Vec<Submission>) -> Self {
        Self { key: enqueue::new_request_key(), submissions }
    }

    /// Returns the jobs of the request, and records the broker to which it is sent.
    pub(super) fn send_to(&mut self, broker: &Address) -> Vec<proto::NewJob> {
        let mut jobs = Vec::with_capacity(self.job_count());
        for submission in &mut self.submissions {
            submission.sending.at(broker);
            jobs.extend_from_slice(&submission.jobs);
        }
        jobs
    }

    pub(super) fn job_count(&self) -> usize {
        self.submissions.iter().map(|submission| submission.jobs.len()).sum()
    }

    /// Bytes of the queue that the request occupies until it is dropped.
    pub(super) fn cost(&self) -> usize {
        self.submissions.iter().map(|submission| submission.room.num_permits()).sum()
    }

    /// Time of the oldest submission that has no result yet; `None` if all have timed out.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.submissions.iter().find(|submission| submission.reply.is_some()).map(|first| first.since)
    }

    /// Fails submissions from before `before`. The request keeps their jobs, because a request that may have arrived must be
    /// repeated unchanged.
    pub(super) fn expire(&mut self, before: Instant, error: &Error) {
        let expired = self.submissions.iter_mut().take_while(|submission| submission.since < before);
        expired.for_each(|submission| submission.answer(Err(error.clone())));
    }

    /// Sends each submission the results of its jobs.
    pub(super) fn resolve(mut self, answers: Vec<Enqueued>) {
        let mut answers = answers.into_iter();
        for submission in &mut self.submissions {
            let jobs = submission.jobs.iter().zip(answers.by_ref());
            let stored = jobs.map(|(job, answer)| answer.of_this_call(job.key.is_empty())).collect();
            submission.answer(Ok(stored));
        }
    }

    /// Splits a refused request, of which nothing is stored. Fails the submission that caused the error, and returns the rest
    /// as new requests. If the error does not name a job, splits the request in two.
    pub(super) fn split(mut self, error: &Error) -> Vec<Self> {
        if let Some((position, first_job)) = error.field().and_then(job_index).and_then(|job| self.position(job)) {
            self.submissions.remove(position).answer(Err(rebased(error, first_job)));
            return if self.submissions.is_empty() { Vec::new() } else { vec![Self::new(self.submissions)] };
        }
        // Errors with these codes concern the caller or the whole call, not one job. Every part of a split request would fail
        // with them too.
        let for_all = matches!(error.code(), Code::Unauthenticated | Code::Unimplemented);
        if self.submissions.len() > 1 && !for_all {
            let second_half = self.submissions.split_off(self.submissions.len() / 2);
            return vec![Self::new(self.submissions), Self::new(second_half)];
        }
        self.submissions.iter_mut().for_each(|submission| submission.answer(Err(error.clone())));
        Vec::new()
    }

    /// Returns the position of the submission that contains job number `job` of this request, and the number of its first job.
    fn position(&self, job: usize) -> Option<(usize, usize)> {
        let mut first_job = 0;
        for (position, submission) in self.submissions.iter().enumerate() {
            if job < first_job + submission.jobs.len() {
                return Some((position, first_job));
            }
            first_job += submission.jobs.len();
        }
        None
    }
}

/// Parses the number 3 from `jobs[3].task_type`.
fn job_index(field: &str) -> Option<usize> {
    let (number, _) = field.strip_prefix("jobs[")?.split_once(']')?;
    number.parse().ok()
}

/// Makes the job index in the error's field and message count from the submission's first job, `first_job`.
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
