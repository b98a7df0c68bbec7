//! Step 5, settle: gathers outcomes, writes them in batches, and answers after the commit.

mod brakes;
mod commit_delay;
mod locked;
mod queue;
mod release;
mod traces;
mod write;

use std::{collections::HashMap, sync::Arc, time::Duration};

use howdah_core::{
    config::Config,
    job::{Lease, SettleStatus, Settlement},
};
use tokio::sync::mpsc;

use crate::{
    batch::{Capacity, Closed, Size},
    critical::CriticalTasks,
    dispatch::Dispatch,
    metrics::Metrics,
    registry::Registry,
    side_lane::{self, Closer, SideLane},
    store::{Store, StoreError},
    traces::Traces,
    wake::Wake,
};
use brakes::Brakes;
use queue::{LockedOutcome, OutcomeQueue, Submission};
pub(crate) use release::Release;

/// Maximum number of concurrent settle statements.
const WRITERS: usize = 2;
/// Approximate maximum size of a batch: number of outcomes, and bytes of their results and errors. A message of a
/// worker is never split.
const BATCH: Size = Size { items: 2_000, bytes: 8 << 20 };

/// The side lane for lock-blocked outcomes holds at most the queue's limits divided by this number.
const LOCKED_SHARE: usize = 4;

/// Statuses of outcomes, in the order of their submission.
pub(crate) type Statuses = Vec<(Lease, SettleStatus)>;

/// Receives the statuses of submitted outcomes: a session, or a unary call.
pub(crate) trait Submitter: Send + Sync + 'static {
    /// Reports the statuses of outcomes after their commit: each outcome once, together with the other outcomes of that
    /// commit.
    fn settled(&self, statuses: Statuses);
}

impl Submitter for mpsc::UnboundedSender<Statuses> {
    fn settled(&self, statuses: Statuses) {
        // A caller that has gone does not need the answer.
        let _ = self.send(statuses);
    }
}

/// Settles and extends leases for their workers.
#[derive(Clone)]
pub struct Settle {
    queue: Arc<OutcomeQueue>,
    store: Store,
    brakes: Arc<Brakes>,
    wake: Wake,
    traces: Traces,
}

/// State of a writer of outcomes.
#[derive(Clone)]
pub(crate) struct Writer {
    store: Store,
    registry: Arc<Registry>,
    dispatch: Arc<Dispatch>,
    brakes: Arc<Brakes>,
    wake: Wake,
    metrics: Arc<Metrics>,
    timeout: Duration,
}

impl Writer {
    /// Creates a writer for the store of this broker.
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
            brakes: Arc::new(Brakes::new(store.clone(), registry.clone(), dispatch.clone())),
            wake: wake.clone(),
            metrics: metrics.clone(),
            timeout: config.database_timeout,
        }
    }
}

impl Settle {
    /// Starts the writers.
    pub(crate) fn start(tasks: &mut CriticalTasks, config: &Config, writer: &Writer) -> Self {
        // The queue bounds only bytes. The limits on unanswered outcomes of sessions and calls bound the number of
        // outcomes.
        let most = Size { items: usize::MAX, bytes: config.limits.gathered_bytes };
        let queue = Arc::new(OutcomeQueue::new(most, config.outcome_wait));
        let locked = Size { bytes: most.bytes / LOCKED_SHARE, ..most };
        let lane = side_lane::start(tasks, "locked outcomes", locked::Locked::new(writer), locked);
        let lane = Arc::new(Closer(lane));
        for _ in 0..WRITERS {
            tasks.spawn("settle", write_all(writer.clone(), queue.clone(), lane.clone()));
        }
        let traces = writer.dispatch.traces().clone();
        let (store, brakes, wake) = (writer.store.clone(), writer.brakes.clone(), writer.wake.clone());
        Self { queue, store, brakes, wake, traces }
    }

    /// Settles attempts. Returns one status per settlement, in order.
    pub async fn settle(&self, settlements: Vec<Settlement>) -> Vec<SettleStatus> {
        let leases: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
        let room = self.room(&settlements).await;
        // The channel is unbounded, but gets at most one message per outcome.
        let (submitter, mut settled) = mpsc::unbounded_channel();
        self.submit(settlements, room, submitter);
        // The caller waits for the answer, so the commit delay is skipped.
        self.skip_delay();
        let mut statuses: HashMap<Lease, SettleStatus> = HashMap::with_capacity(leases.len());
        while let Some(some) = settled.recv().await {
            statuses.extend(some);
        }
        leases.iter().map(|lease| statuses.get(lease).copied().unwrap_or(SettleStatus::Unavailable)).collect()
    }

    /// Waits for room in the queue for these outcomes. The bytes of queued results and errors are bounded, like those
    /// of enqueues.
    pub(crate) async fn room(&self, settlements: &[Settlement]) -> Result<Capacity, Closed> {
        let bytes = settlements.iter().map(|s| 256 + s.outcome.weight()).sum();
        self.queue.room(Size { items: settlements.len(), bytes }).await
    }

    /// Queues the outcomes and passes their statuses to the submitter after the commit. `room` is the memory reserved
    /// for them.
    pub(crate) fn submit(
        &self,
        settlements: Vec<Settlement>,
        room: Result<Capacity, Closed>,
        submitter: impl Submitter,
    ) {
        let submission = Submission::new(settlements, room.ok(), Arc::new(submitter));
        if let Err(submission) = self.queue.push(submission) {
            submission.unavailable();
        }
    }

    /// Ends the commit delay early, because a caller waits for the answer.
    pub(crate) fn skip_delay(&self) {
        self.queue.skip_delay();
    }

    /// Closes the queue. Queued outcomes are still written.
    pub fn close(&self) {
        self.queue.close();
        self.brakes.close();
    }
}

async fn write_all(writer: Writer, queue: Arc<OutcomeQueue>, lane: Arc<Closer<LockedOutcome>>) {
    let lane: &SideLane<LockedOutcome> = &lane.0;
    while let Some(submissions) = queue.take(BATCH).await {
        let settlements: Vec<&Settlement> = submissions.iter().flat_map(Submission::settlements).collect();
        writer.metrics.settle_batch.observe(settlements.len() as f64);
        // An outcome whose job has an earlier outcome in the side lane also goes to the side lane.
        let written = writer.write(&settlements, |id| lane.is_needed(&id)).await;
        let mut rest = written.as_slice();
        for submission in submissions {
            let (of_it, later) = rest.split_at(submission.settlements().len());
            rest = later;
            let trace = traces::settled(writer.dispatch.traces(), submission.settlements(), of_it);
            writer.metrics.settle_latency.observe_traced(submission.waited().as_secs_f64(), trace);
            locked::move_to_side_lane(lane, submission.settled(&mut of_it.iter().copied(), writer.timeout));
        }
    }
}

impl Settle {
    /// Sets the deadline of each attempt to its duration from now. Returns one status per extension, in order.
    pub async fn extend(&self, extensions: Vec<(Lease, Duration)>) -> Vec<SettleStatus> {
        if extensions.is_empty() {
            return Vec::new();
        }
        let mut locked = Vec::new();
        // The statement accepts each job id once.
        let mut sorted = extensions.clone();
        sorted.sort_unstable();
        sorted.dedup_by_key(|(lease, _)| lease.id);
        let mut result = self.store.extend(&sorted).await;
        if let Err(StoreError::Locked(_)) = &result {
            // Locked leases are answered UNAVAILABLE; the others are extended.
            let ids: Vec<i64> = sorted.iter().map(|(lease, _)| lease.id).collect();
            locked = self.store.locked_leases(&ids).await.unwrap_or_default();
            sorted.retain(|(lease, _)| !locked.contains(&lease.id));
            result = self.store.extend(&sorted).await;
        }
        if let Some(soonest) = extensions.iter().map(|(_, duration)| *duration).min() {
            self.wake.deadline_in(soonest);
        }
        let ids = match result {
            Ok(ids) => ids,
            Err(error) => {
                self.store.log_failure("extending leases", &error);
                return vec![SettleStatus::Unavailable; extensions.len()];
            }
        };
        sorted.retain(|(lease, _)| ids.contains(&lease.id));
        self.traces.extended(&sorted);
        let status = |extension: &(Lease, Duration)| {
            if locked.contains(&extension.0.id) {
                return SettleStatus::Unavailable;
            }
            if sorted.contains(extension) { SettleStatus::Ok } else { SettleStatus::LeaseLost }
        };
        extensions.iter().map(status).collect()
    }
}
