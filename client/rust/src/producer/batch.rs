//! Submissions of a producer, the requests made of them, and the splitting of refused requests.

use howdah_proto::v1 as proto;
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot::Sender},
    time::Instant,
};
use tonic::Code;

use crate::{
    Enqueued, Error, Result, enqueue,
    telemetry::{Address, Sending},
};

/// Approximate overhead of a job on the wire and in memory, in bytes.
const JOB_OVERHEAD: usize = 256;

/// Approximate size of a job in bytes. It is never smaller than the encoded size.
pub(super) fn cost(job: &proto::NewJob) -> usize {
    let headers: usize = job.headers.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    let tags: usize = job.tags.iter().map(|tag| tag.len() + 4).sum();
    let trace = job.traceparent.len() + job.tracestate.len();
    job.task_type.len() + job.payload.len() + job.key.len() + headers + tags + trace + JOB_OVERHEAD
}

/// Jobs that are stored together, and the destination of their result.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) jobs: Vec<proto::NewJob>,
    /// The reserved bytes of the queue. They are free again when the submission is dropped.
    pub(super) room: OwnedSemaphorePermit,
    pub(super) since: Instant,
    /// `None` once the result or a timeout was sent.
    pub(super) reply: Option<Sender<Result<Vec<Enqueued>>>>,
    pub(super) sending: Sending,
}

impl Submission {
    /// Sends the result. Without effect if the caller has dropped its receipt, or has already got a result.
    pub(super) fn answer(&mut self, answer: Result<Vec<Enqueued>>) {
        if let Some(reply) = self.reply.take() {
            self.sending.ended(&answer);
            let _ = reply.send(answer);
        }
    }
}

/// One request. It is repeated unchanged, with its request key, until it is answered.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) key: String,
    submissions: Vec<Submission>,
    /// Sequence number and time with which the request was sent last.
    pub(super) sequence: u64,
    pub(super) sent_at: Instant,
}

impl Batch {
    pub(super) fn new(submissions: Vec<Submission>) -> Self {
        Self { key: enqueue::new_request_key(), submissions, sequence: 0, sent_at: Instant::now() }
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
