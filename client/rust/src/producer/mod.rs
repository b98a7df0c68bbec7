//! Enqueues from many tasks over one stream, in batches.
//!
//! [`batch`] has the submitted jobs and the requests made of them; [`pipeline`] is the task that sends the requests, reconnects and
//! delivers results.

mod batch;
mod pipeline;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use howdah_proto::v1 as proto;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::{Instant, timeout},
};

use crate::{Client, Enqueued, Error, NewJob, Result, setters::setters};

use self::{
    batch::{Submission, cost},
    pipeline::Pipeline,
};

const STOPPED: Error = Error::Stopped("producer");

/// Limits of a [`Producer`].
///
/// ```no_run
/// # fn f(client: howdah_client::Client) {
/// use howdah_client::ProducerOptions;
/// let producer = client.producer_with(ProducerOptions::default().max_in_flight(1).max_batch_jobs(100));
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
#[must_use = "options have no effect until they are passed to Client::producer_with"]
pub struct ProducerOptions {
    /// Maximum number of unanswered requests. Default: 4.
    pub max_in_flight: usize,
    /// Maximum number of jobs per request. Jobs of one submission stay together. Default: 1,000.
    pub max_batch_jobs: usize,
    /// Maximum bytes of a request with more than one submission. Default: 4 MiB.
    pub max_batch_bytes: usize,
    /// Maximum bytes queued and in flight; beyond it, submitting waits (backpressure). Default: 64 MiB.
    pub max_queued_bytes: u32,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self { max_in_flight: 4, max_batch_jobs: 1_000, max_batch_bytes: 4 << 20, max_queued_bytes: 64 << 20 }
    }
}

impl ProducerOptions {
    setters! {
        /// Limits the number of unanswered requests.
        max_in_flight(requests: usize) => max_in_flight = requests;

        /// Limits the number of jobs per request.
        max_batch_jobs(jobs: usize) => max_batch_jobs = jobs;

        /// Limits the bytes of a request with more than one submission.
        max_batch_bytes(bytes: usize) => max_batch_bytes = bytes;

        /// Limits the bytes queued and in flight.
        max_queued_bytes(bytes: u32) => max_queued_bytes = bytes;
    }
}

/// Enqueues over one `StreamEnqueue` stream, which its clones share.
///
/// Jobs that arrive while requests are in flight form the next request. So a single job is sent at once, and batches grow
/// under load. The producer reconnects, and repeats unanswered requests with the same request keys, so that nothing is
/// enqueued twice. If the broker refuses a job, only its submission fails, not the other jobs of the request.
///
/// When the last clone is dropped, submitted jobs are sent, and the stream is closed.
#[derive(Debug, Clone)]
pub struct Producer {
    client: Client,
    /// Queue of the pipeline, which ends when the last producer is dropped.
    queue: mpsc::UnboundedSender<Submission>,
    /// Free bytes of the queue.
    room: Arc<Semaphore>,
    /// Capacity of the queue in bytes.
    capacity: u32,
}

impl Producer {
    pub(crate) fn spawn(client: Client, options: ProducerOptions) -> Self {
        let capacity = options.max_queued_bytes.max(1);
        let room = Arc::new(Semaphore::new(capacity as usize));
        let (queue, submissions) = mpsc::unbounded_channel();
        tokio::spawn(Pipeline::new(client.clone(), options, submissions, room.clone()).run());
        Self { client, queue, room, capacity }
    }

    /// Enqueues a job. When this returns, the job is committed.
    ///
    /// To keep many jobs in flight, call it from many tasks, or use [`submit`](Producer::submit). An error that [is
    /// retryable](Error::is_retryable) is returned after the request timeout at the latest; the job may have been stored or not.
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued> {
        self.submit(job).await?.await
    }

    /// Enqueues several jobs atomically.
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Enqueued>> {
        self.submit_all(jobs).await?.await
    }

    /// Submits a job. Waits only while the queue is full. The receipt resolves when the job is committed; dropping it does not
    /// withdraw the job.
    pub async fn submit(&self, job: NewJob) -> Result<Receipt<Enqueued>> {
        self.push(vec![job], |jobs| jobs.first().copied()).await
    }

    /// Submits several jobs, which are stored atomically.
    pub async fn submit_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Receipt<Vec<Enqueued>>> {
        self.push(jobs.into_iter().collect(), Some).await
    }

    /// Waits until all earlier submissions are answered. Submissions made during a flush wait until it ends.
    pub async fn flush(&self) -> Result<()> {
        self.room.acquire_many(self.capacity).await.map(drop).map_err(|_closed| STOPPED)
    }

    async fn push<T>(&self, jobs: Vec<NewJob>, result: fn(Vec<Enqueued>) -> Option<T>) -> Result<Receipt<T>> {
        let (reply, answer) = oneshot::channel();
        let receipt = Receipt { answer, result };
        if jobs.is_empty() {
            let _ = reply.send(Ok(Vec::new()));
            return Ok(receipt);
        }
        let mut jobs = self.client.prepared(jobs)?;
        #[cfg(feature = "testing")]
        if let Some(recorder) = &self.client.settings().recorder {
            let _ = reply.send(recorder.record(jobs));
            return Ok(receipt);
        }
        let mut sending = self.client.settings().telemetry.send(&mut jobs, false);
        let room = self.room_for(&jobs).await.inspect_err(|error| sending.ended(&Err(error.clone())))?;
        let submission = Submission { jobs, room, since: Instant::now(), reply: Some(reply), sending };
        self.queue.send(submission).map_err(|_closed| STOPPED)?;
        Ok(receipt)
    }

    /// Waits until the queue has room for the jobs, and reserves it.
    async fn room_for(&self, jobs: &[proto::NewJob]) -> Result<OwnedSemaphorePermit> {
        let bytes: usize = jobs.iter().map(cost).sum();
        let settings = self.client.settings();
        let limit = settings.max_message_bytes;
        if bytes > limit {
            let message = format!("{bytes} bytes are more than max_message_bytes, which is {limit}");
            return Err(Error::refused("jobs", message));
        }
        let cost = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.capacity);
        let reserving = self.room.clone().acquire_many_owned(cost);
        let (operation, after) = ("waiting for room in the producer's queue", settings.request_timeout);
        match timeout(after, reserving).await {
            Ok(room) => room.map_err(|_closed| STOPPED),
            Err(_) => Err(Error::Deadline { operation, after }),
        }
    }
}

/// Resolves when the submitted jobs are committed, or with an error.
#[derive(Debug)]
#[must_use = "only the receipt tells whether the job was stored"]
pub struct Receipt<T> {
    answer: oneshot::Receiver<Result<Vec<Enqueued>>>,
    /// Converts the results of the submitted jobs to the result of the submission.
    result: fn(Vec<Enqueued>) -> Option<T>,
}

impl<T> Future for Receipt<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        let jobs = answer.unwrap_or(Err(STOPPED))?;
        Poll::Ready((self.result)(jobs).ok_or(STOPPED))
    }
}
