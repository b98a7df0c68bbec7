//! Step 5, settle: gather outcomes, write them in batches, answer after the commit.

mod contest;
mod extend;
mod gathered;
mod linger;
mod locked;
mod queue;
mod release;
mod traces;
mod write;

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::mpsc;

use crate::{
    batch::{Closed, Room, Size},
    config::Config,
    critical::CriticalTasks,
    dispatch::Dispatch,
    job::{Lease, SettleStatus, Settlement},
    metrics::Metrics,
    registry::Registry,
    side_lane::{self, Closer, SideLane},
    store::Store,
    traces::Traces,
    wake::Wake,
};
use gathered::Gathered;
use queue::{LockedOutcome, Submission};
pub(crate) use release::Release;

/// The most statements at once.
const WRITERS: usize = 2;
/// The approximate outcomes in a batch, and bytes of results and errors; a message is never split.
const BATCH: Size = Size { items: 2_000, bytes: 8 << 20 };

/// The part of what may gather that may wait for locks of other transactions.
const LOCKED_SHARE: usize = 4;

/// The statuses of outcomes, in the order in which they were submitted.
pub(crate) type Statuses = Vec<(Lease, SettleStatus)>;

/// Receives the answer to a submission: a session, or a call.
pub(crate) trait Submitter: Send + Sync + 'static {
    /// Called after the commit: once for each outcome, with as many as were written together.
    fn settled(&self, statuses: Statuses);
}

impl Submitter for mpsc::UnboundedSender<Statuses> {
    fn settled(&self, statuses: Statuses) {
        // A caller that has gone does not need the answer.
        let _ = self.send(statuses);
    }
}

/// Ends and extends leases for their workers.
#[derive(Clone)]
pub struct Settle {
    gathered: Arc<Gathered>,
    store: Store,
    wake: Wake,
    traces: Traces,
}

/// The state of a writer.
#[derive(Clone)]
pub(crate) struct Writer {
    store: Store,
    registry: Arc<Registry>,
    dispatch: Arc<Dispatch>,
    wake: Wake,
    metrics: Arc<Metrics>,
    timeout: Duration,
}

impl Writer {
    /// A writer for the store of this broker.
    pub(crate) fn new(
        config: &Config,
        store: &Store,
        registry: &Arc<Registry>,
        dispatch: &Arc<Dispatch>,
        wake: &Wake,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            store: store.clone(),
            registry: registry.clone(),
            dispatch: dispatch.clone(),
            wake: wake.clone(),
            metrics: metrics.clone(),
            timeout: config.database_timeout,
        }
    }
}

impl Settle {
    /// Starts the writers.
    pub(crate) fn start(tasks: &mut CriticalTasks, config: &Config, writer: &Writer) -> Self {
        // The sessions' and calls' limits of unanswered outcomes bound this queue.
        let most = Size { items: usize::MAX, bytes: config.limits.gathered_bytes };
        let gathered = Arc::new(Gathered::new(most, config.outcome_wait));
        let locked = Size { bytes: most.bytes / LOCKED_SHARE, ..most };
        let lane = side_lane::start(tasks, "locked outcomes", locked::Locked::new(writer), locked);
        let lane = Arc::new(Closer(lane));
        for _ in 0..WRITERS {
            tasks.spawn("settle", write_all(writer.clone(), gathered.clone(), lane.clone()));
        }
        let traces = writer.dispatch.traces().clone();
        Self { gathered, store: writer.store.clone(), wake: writer.wake.clone(), traces }
    }

    /// Ends attempts. Returns one status for each, in order.
    pub async fn settle(&self, settlements: Vec<Settlement>) -> Vec<SettleStatus> {
        let leases: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
        let room = self.room(&settlements).await;
        // One message at most for each outcome.
        let (submitter, mut settled) = mpsc::unbounded_channel();
        self.submit(settlements, room, submitter);
        // The caller does nothing else until then.
        self.hurry();
        let mut statuses: HashMap<Lease, SettleStatus> = HashMap::with_capacity(leases.len());
        while let Some(some) = settled.recv().await {
            statuses.extend(some);
        }
        leases.iter().map(|lease| statuses.get(lease).copied().unwrap_or(SettleStatus::Unavailable)).collect()
    }

    /// Waits for memory for these outcomes: results and errors that wait for Postgres are bounded in bytes, as enqueues
    /// are.
    pub(crate) async fn room(&self, settlements: &[Settlement]) -> Result<Room, Closed> {
        let bytes = settlements.iter().map(|s| 256 + s.outcome.weight()).sum();
        self.gathered.room(Size { items: settlements.len(), bytes }).await
    }

    /// Writes the outcomes, which have their memory, then tells the submitter their statuses.
    pub(crate) fn submit(&self, settlements: Vec<Settlement>, room: Result<Room, Closed>, submitter: impl Submitter) {
        let submission = Submission::new(settlements, room.ok(), Arc::new(submitter));
        if let Err(submission) = self.gathered.push(submission) {
            submission.unavailable();
        }
    }

    /// What has gathered is written now: somebody waits for it.
    pub(crate) fn hurry(&self) {
        self.gathered.hurry();
    }

    /// Accepts no more; gathered outcomes are still written.
    pub fn close(&self) {
        self.gathered.close();
    }
}

async fn write_all(writer: Writer, gathered: Arc<Gathered>, lane: Arc<Closer<LockedOutcome>>) {
    let lane: &SideLane<LockedOutcome> = &lane.0;
    while let Some(submissions) = gathered.take(BATCH).await {
        let settlements: Vec<&Settlement> = submissions.iter().flat_map(Submission::settlements).collect();
        writer.metrics.settle_batch.observe(settlements.len() as f64);
        // An outcome behind a locked one of its job follows it.
        let written = writer.write(&settlements, |id| lane.is_needed(&id)).await;
        let mut rest = written.as_slice();
        for submission in submissions {
            let (of_it, later) = rest.split_at(submission.settlements().len());
            rest = later;
            let trace = traces::settled(writer.dispatch.traces(), submission.settlements(), of_it);
            writer.metrics.settle_latency.observe_traced(submission.waited().as_secs_f64(), trace);
            locked::wait_aside(lane, submission.settled(&mut of_it.iter().copied(), writer.timeout));
        }
    }
}
