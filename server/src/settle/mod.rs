//! Step 5, settle: gather outcomes, write them in batches, answer after the commit.

mod give_back;
mod write;

use std::{collections::VecDeque, sync::Arc, time::Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{
    broker::Lanes,
    config::Config,
    job::{Lease, SettleStatus, Settlement},
    metrics::Metrics,
    registry::Registry,
    store::Store,
    wake::Wake,
};
pub(crate) use give_back::{GiveBack, Returned};

/// Statements under way at once.
const WRITERS: usize = 2;
/// Outcomes in a batch, about; a message is never split.
const BATCH: usize = 2_000;

/// Bytes of results and errors in a batch, about.
const BATCH_BYTES: usize = 8 << 20;

/// What is told when a submission has been written.
type Done = Box<dyn FnOnce(Vec<(Lease, SettleStatus)>) + Send>;

/// Outcomes that came together and are answered together.
struct Submission {
    settlements: Vec<Settlement>,
    bytes: usize,
    since: Instant,
    done: Done,
}

/// Where outcomes gather. Bounded by what sessions and calls may have unanswered.
#[derive(Default)]
struct Queue {
    gathered: Mutex<Gathered>,
    arrived: Notify,
}

#[derive(Default)]
struct Gathered {
    submissions: VecDeque<Submission>,
    closed: bool,
}

/// The way out.
pub struct Settle {
    queue: Arc<Queue>,
    room: Arc<Semaphore>,
    most_kib: usize,
}

/// What a writer needs.
pub(crate) struct Writer {
    store: Store,
    registry: Arc<Registry>,
    wake: Wake,
    metrics: Arc<Metrics>,
    timeout: std::time::Duration,
}

impl Settle {
    /// Starts the writers.
    pub(crate) fn start(
        lanes: &mut Lanes,
        config: &Config,
        store: &Store,
        registry: &Arc<Registry>,
        wake: &Wake,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        for _ in 0..WRITERS {
            let writer = Writer {
                store: store.clone(),
                registry: registry.clone(),
                wake: wake.clone(),
                metrics: metrics.clone(),
                timeout: config.database_timeout,
            };
            lanes.spawn("settle", write_all(writer, queue.clone()));
        }
        let most_kib = (config.limits.gathered_bytes >> 10).max(1);
        Self { queue, room: Arc::new(Semaphore::new(most_kib)), most_kib }
    }

    /// Waits for room for what these outcomes carry: results and errors that wait for Postgres are
    /// bounded in bytes, as enqueues are. Given back when dropped.
    pub async fn room(&self, settlements: &[Settlement]) -> Option<OwnedSemaphorePermit> {
        let bytes: usize = settlements.iter().map(|s| 256 + s.outcome.weight()).sum();
        // More than there is room for may pass alone.
        let kib = (bytes >> 10).min(self.most_kib) as u32;
        self.room.clone().acquire_many_owned(kib).await.ok()
    }

    /// Writes the outcomes, then calls `done` with one status for each, in any order.
    pub fn submit(&self, settlements: Vec<Settlement>, done: impl FnOnce(Vec<(Lease, SettleStatus)>) + Send + 'static) {
        let bytes = settlements.iter().map(|s| s.outcome.weight()).sum();
        let submission = Submission { settlements, bytes, since: Instant::now(), done: Box::new(done) };
        let refused = {
            let mut gathered = self.queue.gathered.lock();
            if gathered.closed {
                Some(submission)
            } else {
                gathered.submissions.push_back(submission);
                None
            }
        };
        match refused {
            None => self.queue.arrived.notify_one(),
            Some(submission) => {
                let statuses = submission.settlements.iter().map(|s| (s.lease, SettleStatus::Unavailable)).collect();
                (submission.done)(statuses);
            }
        }
    }

    /// Takes no more; what has gathered is still written.
    pub fn close(&self) {
        self.queue.gathered.lock().closed = true;
        self.queue.arrived.notify_waiters();
        self.queue.arrived.notify_one();
    }
}

impl Queue {
    async fn take(&self) -> Option<Vec<Submission>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut gathered = self.gathered.lock();
                let (mut outcomes, mut bytes, mut count) = (0, 0, 0);
                for submission in &gathered.submissions {
                    outcomes += submission.settlements.len();
                    bytes += submission.bytes;
                    if count > 0 && (outcomes > BATCH || bytes > BATCH_BYTES) {
                        break;
                    }
                    count += 1;
                }
                let batch: Vec<Submission> = gathered.submissions.drain(..count).collect();
                if !gathered.submissions.is_empty() {
                    self.arrived.notify_one();
                }
                if !batch.is_empty() {
                    return Some(batch);
                }
                if gathered.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }
}

async fn write_all(writer: Writer, queue: Arc<Queue>) {
    while let Some(submissions) = queue.take().await {
        let settlements: Vec<&Settlement> = submissions.iter().flat_map(|s| &s.settlements).collect();
        writer.metrics.settle_batch.observe(settlements.len() as f64);
        let statuses = writer.write(&settlements).await;
        let mut statuses = statuses.into_iter();
        for submission in submissions {
            writer.metrics.settle_latency.observe(submission.since.elapsed().as_secs_f64());
            let told = submission.settlements.iter().map(|s| s.lease).zip(statuses.by_ref()).collect();
            (submission.done)(told);
        }
    }
}
