//! Enqueues jobs in one call: all of them or none, and never twice.

use std::time::SystemTime;

use howdah_proto::v1 as proto;

use crate::{Client, Error, NewJob, Result, call::Tries, telemetry::Sending};

/// The result of enqueuing one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Enqueued {
    /// The id of the new job, or of the job that holds its key.
    pub id: i64,
    /// False if the job's key or the request key found an existing job.
    pub is_new: bool,
    /// What the enqueue did.
    pub outcome: EnqueueOutcome,
}

impl Enqueued {
    /// A job without a key that the broker already had was stored by an earlier attempt of this same call, under the
    /// call's own request key. So it is new to the caller.
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
    /// The job was stored.
    New,
    /// The same request was made before. This is what it stored then.
    Repeated,
    /// Another job holds the key and stays as it was.
    Kept,
    /// The job that holds the key has the payload and options of this one now.
    Replaced,
    /// Another job holds the key, with the same or a higher version, and stays as it was.
    Stale,
    /// The job that holds the key is running. This job was stored and starts when that one has ended.
    Next,
    /// The job that holds the key has the payload, options and start of this one now.
    Debounced,
}

impl EnqueueOutcome {
    /// Its name, as in SQL and on the command line.
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
    /// Enqueues a job. When this returns, the job is committed.
    ///
    /// If no broker answers, this tries again until the request timeout, with one request key, so that nothing is
    /// enqueued twice. After an error that [is retryable](Error::is_retryable) the job may be stored or not. To repeat
    /// the call safely, also in another process, use [`enqueue_all_with_key`](Client::enqueue_all_with_key).
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued> {
        let mut done = self.enqueue_all(vec![job]).await?;
        done.pop().ok_or_else(|| wrong_count(0, 1))
    }

    /// Enqueues up to 10,000 jobs in one request and one transaction: all of them or none. Tries again as
    /// [`enqueue`](Client::enqueue) does.
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Enqueued>> {
        let mut jobs = self.prepared(jobs)?;
        let keyed: Vec<bool> = jobs.iter().map(|job| !job.key.is_empty()).collect();
        let mut sending = self.settings().telemetry.send(&mut jobs, false);
        let mut answer = self.enqueue_request(jobs, new_request_key()).await;
        for (job, keyed) in answer.iter_mut().flatten().zip(keyed) {
            job.was_stored_by_this_call(!keyed);
        }
        self.sent(&mut sending, &answer);
        answer
    }

    fn sent(&self, sending: &mut Sending, answer: &Result<Vec<Enqueued>>) {
        sending.at(self.address(self.current()));
        sending.ended(answer);
        self.settings().middleware.enqueued(answer);
    }

    /// The jobs, after all middleware.
    pub(crate) fn prepared(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<proto::NewJob>> {
        let mut jobs: Vec<NewJob> = jobs.into_iter().collect();
        self.settings().middleware.enqueue(&mut jobs)?;
        Ok(jobs.into_iter().map(NewJob::into_proto).collect())
    }

    /// Enqueues with a request key of the caller, which is safe to repeat for 24 hours from anywhere. The same key with
    /// the same jobs returns the same ids; with other jobs the error is `ALREADY_EXISTS`.
    pub async fn enqueue_all_with_key(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
        request_key: impl Into<String>,
    ) -> Result<Vec<Enqueued>> {
        // No trace context is added: the same request must stay the same.
        let mut jobs = self.prepared(jobs)?;
        let mut sending = self.settings().telemetry.send(&mut jobs, true);
        let answer = self.enqueue_request(jobs, request_key.into()).await;
        self.sent(&mut sending, &answer);
        answer
    }

    /// One request, repeated until the deadline.
    pub(crate) async fn enqueue_request(&self, jobs: Vec<proto::NewJob>, request_key: String) -> Result<Vec<Enqueued>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        #[cfg(feature = "testing")]
        if let Some(recorder) = &self.settings().recorder {
            return Ok(recorder.record(jobs));
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

/// The broker's answer, with one result for each job.
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

/// A unique key for [`Client::enqueue_all_with_key`]: the time, and 80 random bits.
pub fn new_request_key() -> String {
    // Only one call uses it, so it can only find jobs that an earlier attempt of the call has stored, and these are new to
    // the caller. The time comes first, as in a UUID of version 7, so that keys of the same minute are neighbours in the
    // index.
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let random = rand::random::<u128>() >> 48;
    format!("{:032x}", (since_1970.as_millis() << 80) | random)
}
