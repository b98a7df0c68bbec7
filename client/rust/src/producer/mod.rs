//! Enqueue from many tasks at once over one stream, in batches that form by themselves.
//!
//! - [`gather`]: what waits to be sent, who waits for it, and how a refused request is split
//! - [`link`]: one `StreamEnqueue` stream
//! - [`pipeline`]: the task that sends, reconnects and answers

mod gather;
mod link;
mod pipeline;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    sync::{
        Semaphore, oneshot,
        oneshot::{Receiver, Sender},
    },
    time::timeout,
};

use crate::{Client, Enqueued, Error, NewJob, Result};

use self::gather::{Reply, Shared, cost};

const STOPPED: Error = Error::Stopped("producer");

/// The bounds of a [`Producer`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProducerOptions {
    /// Requests sent and not yet answered, at most. Default: 4.
    pub max_in_flight: usize,
    /// Jobs of a request, at most; what was submitted together stays together. Default: 1,000.
    pub max_batch_jobs: usize,
    /// Bytes of a request, at most, if it has more than one job. Default: 4 MiB.
    pub max_batch_bytes: usize,
    /// Bytes gathered and in flight; when it is reached, submitting waits. Default: 64 MiB.
    pub max_gathered_bytes: u32,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self { max_in_flight: 4, max_batch_jobs: 1_000, max_batch_bytes: 4 << 20, max_gathered_bytes: 64 << 20 }
    }
}

/// Enqueues over one `StreamEnqueue` stream, shared by its clones.
///
/// What gathers while requests are in flight goes out as the next request: a single job goes at
/// once, and under load the batches grow by themselves. It reconnects, and sends again what was
/// not answered under the same request key, so that nothing is enqueued twice. A job that the
/// broker refuses fails alone, not those that happened to be in its request.
///
/// Dropping the last clone lets what was submitted go out, then closes the stream.
#[derive(Debug, Clone)]
pub struct Producer {
    handle: Arc<Handle>,
}

/// Closes the pipeline when the last producer is gone.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    client: Client,
    /// The size of `shared.room`.
    capacity: u32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Producer {
    pub(crate) fn spawn(client: Client, options: ProducerOptions) -> Self {
        let capacity = options.max_gathered_bytes.max(1);
        let shared = Arc::new(Shared::new(Semaphore::new(capacity as usize)));
        let pipeline = pipeline::Pipeline::new(client.clone(), options, shared.clone());
        tokio::spawn(pipeline.run());
        Self { handle: Arc::new(Handle { shared, client, capacity }) }
    }

    /// Enqueues a job. Done when it is committed.
    ///
    /// To keep many jobs on their way, call it from many tasks or use
    /// [`submit`](Producer::submit). An error that [is retryable](Error::is_retryable) comes after
    /// the request timeout at the latest; the job may then have been stored or not.
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued> {
        self.submit(job).await?.await
    }

    /// Enqueues several jobs: all of them or none.
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Enqueued>> {
        self.submit_all(jobs).await?.await
    }

    /// Hands a job over, waiting only while too much is gathered already. The receipt resolves
    /// when the job is committed; a dropped receipt does not take the job back.
    pub async fn submit(&self, job: NewJob) -> Result<Receipt<Enqueued>> {
        let (reply, receipt) = receipt();
        self.push(vec![job], Reply::One(reply)).await?;
        Ok(receipt)
    }

    /// Hands several jobs over, to be stored all or none.
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

    /// Waits until everything submitted before is answered. What is submitted meanwhile waits.
    pub async fn flush(&self) -> Result<()> {
        let shared = &self.handle.shared;
        match shared.room.acquire_many(self.handle.capacity).await {
            Ok(_all_of_it) => Ok(()),
            Err(_) => Err(STOPPED),
        }
    }

    async fn push(&self, jobs: Vec<NewJob>, reply: Reply) -> Result<()> {
        let bytes: usize = jobs.iter().map(|job| cost(&job.0)).sum();
        let limit = self.handle.client.settings().max_message_bytes;
        if bytes > limit {
            let message = format!("{bytes} bytes do not fit in a message of {limit}");
            return Err(Error::invalid("jobs", message));
        }
        let cost = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.handle.capacity);
        self.reserve(cost).await?;
        self.handle.shared.push(jobs, cost, reply)
    }

    /// Takes room for `cost` bytes, which the pipeline gives back with the answer.
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
            Err(_) => Err(Error::Deadline { what: "room for another job", after }),
        }
    }
}

/// Resolves when what was submitted is committed, or with the reason why it is not.
#[derive(Debug)]
#[must_use = "without it nobody learns whether the job was stored"]
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
