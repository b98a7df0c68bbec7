//! Enqueue in one call: all of the jobs or none, and never twice.

use std::time::SystemTime;

use howdah_proto::v1 as proto;

use crate::{Client, Error, NewJob, Result, call::Tries};

/// What became of one job of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Enqueued {
    /// The job's number: new, or that of the job that already holds its key.
    pub id: i64,
    /// False when the job's key or the request key found a job that was there already.
    pub is_new: bool,
    /// What was done.
    pub outcome: EnqueueOutcome,
}

impl Enqueued {
    /// A job without a key of its own that the broker knew already was stored by an earlier try of this very call, under
    /// the call's own request key: to the caller it is new.
    pub(crate) fn was_stored_by_this_call(&mut self, without_key: bool) {
        if without_key && !self.is_new {
            (self.is_new, self.outcome) = (true, EnqueueOutcome::New);
        }
    }
}

/// What an enqueue did with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EnqueueOutcome {
    /// The job is stored.
    New,
    /// The request was made before: this is what it stored then.
    Repeated,
    /// Another job has the key, and stays as it was.
    Kept,
    /// Another job has the key, and now has the payload and options of this one.
    Replaced,
    /// Another job has the key, of a version that is not lower, and stays as it was.
    Stale,
    /// Another job has the key and runs. This one is stored, and runs after it.
    Next,
    /// Another job has the key, now has the payload and options of this one, and starts when this one would.
    Debounced,
}

impl EnqueueOutcome {
    /// Its name, as SQL and the command line say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Repeated => "repeated",
            Self::Kept => "kept",
            Self::Replaced => "replaced",
            Self::Stale => "stale",
            Self::Next => "next",
            Self::Debounced => "debounced",
        }
    }

    fn of(job: &proto::EnqueuedJob) -> Self {
        match job.outcome() {
            proto::EnqueueOutcome::Repeated => Self::Repeated,
            proto::EnqueueOutcome::Kept => Self::Kept,
            proto::EnqueueOutcome::Replaced => Self::Replaced,
            proto::EnqueueOutcome::Stale => Self::Stale,
            proto::EnqueueOutcome::Next => Self::Next,
            proto::EnqueueOutcome::Debounced => Self::Debounced,
            proto::EnqueueOutcome::New | proto::EnqueueOutcome::Unspecified => Self::New,
        }
    }
}

impl Client {
    /// Enqueues a job. Done when it is committed.
    ///
    /// While brokers are away it is tried again, under one request key, until the request timeout:
    /// nothing is enqueued twice. After an error that [is retryable](Error::is_retryable) the job
    /// may be there or not; to go on safely in another process, use
    /// [`enqueue_all_with_key`](Client::enqueue_all_with_key).
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued> {
        let mut done = self.enqueue_all(vec![job]).await?;
        done.pop().ok_or_else(|| wrong_count(0, 1))
    }

    /// Enqueues up to 10,000 jobs in one request and one transaction: all of them or none.
    /// Tried again as [`enqueue`](Client::enqueue) is.
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Enqueued>> {
        let jobs: Vec<proto::NewJob> = jobs.into_iter().map(NewJob::into_proto).collect();
        let keyed: Vec<bool> = jobs.iter().map(|job| !job.key.is_empty()).collect();
        let mut done = self.enqueue_request(jobs, new_request_key()).await?;
        for (job, keyed) in done.iter_mut().zip(keyed) {
            job.was_stored_by_this_call(!keyed);
        }
        Ok(done)
    }

    /// Enqueues under a request key of the caller's, safe to repeat for 24 hours from anywhere:
    /// the same key with the same jobs returns the same ids, with other jobs `ALREADY_EXISTS`.
    pub async fn enqueue_all_with_key(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
        request_key: impl Into<String>,
    ) -> Result<Vec<Enqueued>> {
        let jobs = jobs.into_iter().map(NewJob::into_proto).collect();
        self.enqueue_request(jobs, request_key.into()).await
    }

    /// One request, tried until the deadline.
    pub(crate) async fn enqueue_request(&self, jobs: Vec<proto::NewJob>, request_key: String) -> Result<Vec<Enqueued>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let count = jobs.len();
        let request = proto::EnqueueJobsRequest { jobs, request_key };
        let response = self
            .call("enqueue", Tries::UntilDeadline, request, |client, request| async move {
                client.jobs().enqueue_jobs(request).await
            })
            .await?;
        enqueued(response.jobs, count)
    }
}

/// The broker's answer, one for each job.
pub(crate) fn enqueued(jobs: Vec<proto::EnqueuedJob>, count: usize) -> Result<Vec<Enqueued>> {
    if jobs.len() != count {
        return Err(wrong_count(jobs.len(), count));
    }
    let one = |job: proto::EnqueuedJob| Enqueued { id: job.id, is_new: job.is_new, outcome: EnqueueOutcome::of(&job) };
    Ok(jobs.into_iter().map(one).collect())
}

pub(crate) fn wrong_count(got: usize, wanted: usize) -> Error {
    Error::from(tonic::Status::internal(format!("the broker answered for {got} jobs instead of {wanted}")))
}

/// A key that nobody else uses: the time, and 80 random bits. Because it is ours alone, it can only ever
/// find jobs that an earlier try of the same call has stored, and these are new to the caller. The time
/// goes first, as in a UUID of version 7, so that the keys of one minute are neighbours in the index.
pub(crate) fn new_request_key() -> String {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let random = rand::random::<u128>() >> 48;
    format!("{:032x}", (since_1970.as_millis() << 80) | random)
}
