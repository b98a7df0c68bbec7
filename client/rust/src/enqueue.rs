//! Enqueues jobs in one call: atomic and idempotent.

use std::time::SystemTime;

use howdah_proto::v1::{self as proto, EnqueueOutcome};

use crate::{Client, NewJob, Result, call::call};

/// Result of enqueueing one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Enqueued {
    /// The id of the new job, or of the job that holds its key.
    pub id: i64,
    /// False if the job's key or the request key found an existing job.
    pub is_new: bool,
    /// Effect of the enqueue.
    pub outcome: EnqueueOutcome,
}

impl Enqueued {
    /// Reports a job without a job key as new. The generated request key is unique, so if the job existed already, an earlier
    /// attempt of the same call has stored it.
    pub(crate) fn of_this_call(self, without_key: bool) -> Self {
        if without_key { Self { is_new: true, outcome: EnqueueOutcome::New, ..self } } else { self }
    }
}

impl Client {
    /// Enqueues a job. When this returns, the job is committed.
    ///
    /// If no broker responds, the client retries until the request timeout, with one request key, so that nothing is enqueued
    /// twice. After an error that [is retryable](crate::Error::is_retryable) the job may be stored or not. To repeat the call safely, also
    /// from another process, use [`enqueue_all_with_key`](Client::enqueue_all_with_key).
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued> {
        Ok(self.enqueue_all([job]).await?[0])
    }

    /// Enqueues up to 10,000 jobs in one request and one transaction: all of them or none. Retries like
    /// [`enqueue`](Client::enqueue).
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Enqueued>> {
        self.enqueue_prepared(self.prepared(jobs)?, None).await
    }

    /// Enqueues with the caller's request key, which makes the call idempotent for 24 hours, from any process. The same key with
    /// the same jobs returns the same ids; with other jobs the error is `ALREADY_EXISTS`.
    pub async fn enqueue_all_with_key(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
        request_key: impl Into<String>,
    ) -> Result<Vec<Enqueued>> {
        self.enqueue_prepared(self.prepared(jobs)?, Some(request_key.into())).await
    }

    /// Runs the middleware on the jobs, and converts them to protocol messages.
    pub(crate) fn prepared(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<proto::NewJob>> {
        let mut jobs: Vec<NewJob> = jobs.into_iter().collect();
        self.settings().middleware.enqueue(&mut jobs)?;
        Ok(jobs.into_iter().map(NewJob::into_proto).collect())
    }

    async fn enqueue_prepared(
        &self,
        mut jobs: Vec<proto::NewJob>,
        callers_key: Option<String>,
    ) -> Result<Vec<Enqueued>> {
        // With the caller's key the jobs get no trace context, because the request must be identical when it is repeated.
        let has_callers_key = callers_key.is_some();
        let mut sending = self.settings().telemetry.send(&mut jobs, has_callers_key);
        let has_no_key: Vec<bool> = jobs.iter().map(|job| job.key.is_empty() && !has_callers_key).collect();
        let mut answer = self.enqueue_request(jobs, callers_key.unwrap_or_else(new_request_key)).await;
        for (job, has_no_key) in answer.iter_mut().flatten().zip(has_no_key) {
            *job = job.of_this_call(has_no_key);
        }
        sending.at(self.address(self.current()));
        sending.ended(&answer);
        self.settings().middleware.enqueued(&answer);
        answer
    }

    /// Sends one enqueue request, and retries it until the request timeout.
    pub(crate) async fn enqueue_request(&self, jobs: Vec<proto::NewJob>, request_key: String) -> Result<Vec<Enqueued>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        #[cfg(feature = "testing")]
        if let Some(recorder) = &self.settings().recorder {
            return recorder.record(jobs);
        }
        let count = jobs.len();
        let request = proto::EnqueueJobsRequest { jobs, request_key };
        let response = call!(Keyed self.jobs().enqueue_jobs(request))?;
        enqueued(response.jobs, count)
    }
}

/// Converts the broker's response, which must have one result for each job.
pub(crate) fn enqueued(jobs: Vec<proto::EnqueuedJob>, count: usize) -> Result<Vec<Enqueued>> {
    if jobs.len() != count {
        let message = format!("the broker answered for {} jobs instead of {count}", jobs.len());
        return Err(tonic::Status::internal(message).into());
    }
    let one = |job: proto::EnqueuedJob| Enqueued { id: job.id, is_new: job.is_new, outcome: job.outcome() };
    Ok(jobs.into_iter().map(one).collect())
}

/// Creates a unique key for [`Client::enqueue_all_with_key`] from the time and 80 random bits.
pub fn new_request_key() -> String {
    // The time comes first, as in a version 7 UUID, so that keys of the same minute are neighbours in the database's index.
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let random = rand::random::<u128>() >> 48;
    format!("{:032x}", (since_1970.as_millis() << 80) | random)
}
