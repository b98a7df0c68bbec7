//! Enqueues from many tasks over one stream, in batches.
//!
//! - [`queue`]: queued jobs and their waiters, and the splitting of refused requests
//! - [`link`]: one `StreamEnqueue` stream
//! - [`pipeline`]: the task that sends, reconnects and delivers results

mod link;
mod pipeline;
mod queue;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use howdah_proto::v1 as proto;
use tokio::{
    sync::{
        Semaphore, oneshot,
        oneshot::{Receiver, Sender},
    },
    time::timeout,
};

use crate::{Client, Enqueued, Error, NewJob, Result};

use self::queue::{Reply, Shared, cost};

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
    /// Limits the number of unanswered requests.
    #[must_use]
    pub fn max_in_flight(self, requests: usize) -> Self {
        Self { max_in_flight: requests, ..self }
    }

    /// Limits the number of jobs per request.
    #[must_use]
    pub fn max_batch_jobs(self, jobs: usize) -> Self {
        Self { max_batch_jobs: jobs, ..self }
    }

    /// Limits the bytes of a request with more than one submission.
    #[must_use]
    pub fn max_batch_bytes(self, bytes: usize) -> Self {
        Self { max_batch_bytes: bytes, ..self }
    }

    /// Limits the bytes queued and in flight.
    #[must_use]
    pub fn max_queued_bytes(self, bytes: u32) -> Self {
        Self { max_queued_bytes: bytes, ..self }
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
    handle: Arc<Handle>,
}

/// Closes the pipeline when the last producer is dropped.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    client: Client,
    /// Capacity of the queue in bytes. The semaphore `shared.room` has one permit for each free byte.
    capacity: u32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Producer {
    pub(crate) fn spawn(client: Client, options: ProducerOptions) -> Self {
        let capacity = options.max_queued_bytes.max(1);
        let shared = Arc::new(Shared::new(Semaphore::new(capacity as usize)));
        let pipeline = pipeline::Pipeline::new(client.clone(), options, shared.clone());
        tokio::spawn(pipeline.run());
        Self { handle: Arc::new(Handle { shared, client, capacity }) }
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
        let (reply, receipt) = receipt();
        self.push(vec![job], Reply::One(reply)).await?;
        Ok(receipt)
    }

    /// Submits several jobs, which are stored atomically.
    pub async fn submit_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Receipt<Vec<Enqueued>>> {
        let jobs: Vec<NewJob> = jobs.into_iter().collect();
        let (reply, receipt) = receipt();
        if jobs.is_empty() {
            Reply::All(reply).send(Ok(Vec::new()));
        } else {
            self.push(jobs, Reply::All(reply)).await?;
        }
        Ok(receipt)
    }

    /// Waits until all earlier submissions are answered. Submissions made during a flush wait until it ends.
    pub async fn flush(&self) -> Result<()> {
        let shared = &self.handle.shared;
        match shared.room.acquire_many(self.handle.capacity).await {
            Ok(_all_of_it) => Ok(()),
            Err(_) => Err(STOPPED),
        }
    }

    async fn push(&self, jobs: Vec<NewJob>, reply: Reply) -> Result<()> {
        let client = &self.handle.client;
        let mut jobs = client.prepared(jobs)?;
        #[cfg(feature = "testing")]
        if let Some(recorder) = &client.settings().recorder {
            reply.send(recorder.record(jobs));
            return Ok(());
        }
        let mut sending = client.settings().telemetry.send(&mut jobs, false);
        match self.room_for(&jobs).await {
            Ok(cost) => self.handle.shared.push(jobs, cost, reply, sending),
            Err(error) => {
                sending.ended(&Err(error.clone()));
                Err(error)
            }
        }
    }

    /// Waits until the queue has room for the jobs. Returns the number of reserved bytes. The bytes are released when the
    /// result arrives.
    async fn room_for(&self, jobs: &[proto::NewJob]) -> Result<u32> {
        let bytes: usize = jobs.iter().map(cost).sum();
        let limit = self.handle.client.settings().max_message_bytes;
        if bytes > limit {
            let message = format!("{bytes} bytes are more than max_message_bytes, which is {limit}");
            return Err(Error::invalid("jobs", message));
        }
        let cost = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.handle.capacity);
        self.reserve(cost).await?;
        Ok(cost)
    }

    /// Reserves `cost` bytes of the queue. The pipeline releases them when the result arrives.
    async fn reserve(&self, cost: u32) -> Result<()> {
        let room = &self.handle.shared.room;
        if let Ok(permit) = room.try_acquire_many(cost) {
            permit.forget();
            return Ok(());
        }
        let after = self.handle.client.settings().request_timeout;
        match timeout(after, room.acquire_many(cost)).await {
            Ok(Ok(permit)) => {
                permit.forget();
                Ok(())
            }
            Ok(Err(_closed)) => Err(STOPPED),
            Err(_) => Err(Error::Deadline { operation: "waiting for room in the producer's queue", after }),
        }
    }
}

/// Resolves when the submitted jobs are committed, or with an error.
#[derive(Debug)]
#[must_use = "only the receipt tells whether the job was stored"]
pub struct Receipt<T>(Receiver<Result<T>>);

fn receipt<T>() -> (Sender<Result<T>>, Receipt<T>) {
    let (sender, receiver) = oneshot::channel();
    (sender, Receipt(receiver))
}

impl<T> Future for Receipt<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|answer| answer.unwrap_or(Err(STOPPED)))
    }
}
