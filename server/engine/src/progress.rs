//! Progress: queues the progress reports of workers, writes them in batches, and answers callers after the commit.
//!
//! A single writer keeps the order, so that the last report of a worker wins. The next batch fills while the writer
//! waits for the disk. If a batch has several reports of one lease, they are merged and written once.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use howdah_core::{
    config::Config,
    job::{Lease, ProgressReport, SettleStatus},
};
use tokio::sync::oneshot;

use crate::{
    batch::{Batcher, Capacity, Size, Weigh},
    critical::CriticalTasks,
    store::{Store, StoreError},
};

/// Approximate maximum size of a batch: number of reports, and bytes of texts and checkpoints. Reports that are
/// submitted together are never split.
const BATCH: Size = Size { items: 2_000, bytes: 8 << 20 };
/// Bytes that the queue counts for a report, in addition to its text and checkpoint.
const REPORT_BYTES: usize = 256;
/// Maximum number of statements per batch. A job that occurs with several leases in a batch needs one statement per
/// lease.
const ROUNDS: usize = 3;

/// Reports that are submitted together and answered together.
struct Submission {
    reports: Vec<ProgressReport>,
    bytes: usize,
    answer: oneshot::Sender<Vec<SettleStatus>>,
    /// Room in the queue, held until the reports are written.
    _room: Capacity,
}

impl Weigh for Submission {
    fn items(&self) -> usize {
        self.reports.len()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The queue of progress reports.
#[derive(Clone)]
pub struct Progress {
    queue: Arc<Batcher<Submission>>,
}

/// The answer to submitted reports, to wait for.
pub struct Pending {
    count: usize,
    answer: oneshot::Receiver<Vec<SettleStatus>>,
}

impl Pending {
    /// Waits until the reports are written, and returns one status for each report, in order.
    pub async fn wait(self) -> Vec<SettleStatus> {
        self.answer.await.unwrap_or_else(|_| vec![SettleStatus::Unavailable; self.count])
    }
}

impl Progress {
    /// Starts the writer.
    pub(crate) fn start(tasks: &mut CriticalTasks, config: &Config, store: &Store) -> Self {
        // The number of reports in the queue needs no limit, because sessions limit the unanswered messages.
        let most = Size { items: usize::MAX, bytes: config.limits.gathered_bytes };
        let queue = Arc::new(Batcher::new(most));
        tasks.spawn("progress", write_all(store.clone(), queue.clone()));
        Self { queue }
    }

    /// Queues reports after all earlier ones. Waits (backpressure) while the queue is full.
    pub async fn submit(&self, reports: Vec<ProgressReport>) -> Pending {
        let (answer, answered) = oneshot::channel();
        let count = reports.len();
        if count > 0 {
            let bytes = reports.iter().map(|report| REPORT_BYTES + report.weight()).sum::<usize>();
            if let Ok(room) = self.queue.room(Size { items: count, bytes }).await {
                // If the queue is closed, `push` drops the submission and its sender, so that the caller gets
                // `Unavailable`.
                let _ = self.queue.push(Submission { reports, bytes, answer, _room: room });
            }
        }
        Pending { count, answer: answered }
    }

    /// Refuses new reports; queued reports are still written.
    pub fn close(&self) {
        self.queue.close();
    }
}

async fn write_all(store: Store, queue: Arc<Batcher<Submission>>) {
    while let Some(batch) = queue.take(BATCH).await {
        let reports: Vec<&ProgressReport> = batch.iter().flat_map(|submission| &submission.reports).collect();
        let mut statuses = write(&store, &reports).await.into_iter();
        for Submission { reports, answer, .. } in batch {
            // Sending fails if the caller no longer waits.
            let _ = answer.send(statuses.by_ref().take(reports.len()).collect());
        }
    }
}

/// Writes the reports. Returns one status for each report, in order.
async fn write(store: &Store, reports: &[&ProgressReport]) -> Vec<SettleStatus> {
    let mut statuses: HashMap<Lease, SettleStatus> = HashMap::new();
    for round in rounds(reports) {
        let mut round: Vec<&ProgressReport> = round.iter().collect();
        match report_unlocked(store, &mut round).await {
            Ok(ids) => {
                let ids: HashSet<i64> = ids.into_iter().collect();
                statuses.extend(round.iter().map(|report| {
                    let found = ids.contains(&report.lease.id);
                    (report.lease, if found { SettleStatus::Ok } else { SettleStatus::LeaseLost })
                }));
            }
            Err(error) => {
                store.log_failure("writing progress reports", &error);
            }
        }
    }
    // A report that was in no round or in a failed one gets `Unavailable`, because its effect is unknown.
    reports.iter().map(|report| statuses.get(&report.lease).copied().unwrap_or(SettleStatus::Unavailable)).collect()
}

/// Writes the reports with one statement. If another transaction has locked some of the jobs, skips their reports, so
/// that the others do not wait.
async fn report_unlocked(store: &Store, round: &mut Vec<&ProgressReport>) -> Result<Vec<i64>, StoreError> {
    match store.report_progress(round).await {
        Err(StoreError::Locked(_)) => {
            let ids: Vec<i64> = round.iter().map(|report| report.lease.id).collect();
            let locked = store.locked_leases(&ids).await?;
            round.retain(|report| !locked.contains(&report.lease.id));
            store.report_progress(round).await
        }
        result => result,
    }
}

/// Merges the reports of each lease. Then splits them into rounds, so that a job id occurs once per statement. Each
/// round is sorted by job id.
fn rounds(reports: &[&ProgressReport]) -> Vec<Vec<ProgressReport>> {
    let mut merged: BTreeMap<Lease, ProgressReport> = BTreeMap::new();
    for report in reports {
        merged.entry(report.lease).and_modify(|earlier| earlier.then(report)).or_insert_with(|| (*report).clone());
    }
    let mut rounds: Vec<Vec<ProgressReport>> = Vec::new();
    let (mut last, mut times) = (None, 0);
    for (lease, report) in merged {
        times = if last == Some(lease.id) { times + 1 } else { 0 };
        last = Some(lease.id);
        if times >= ROUNDS {
            continue;
        }
        if rounds.len() <= times {
            rounds.push(Vec::new());
        }
        rounds[times].push(report);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(id: i64, token: i64, fraction: f64) -> ProgressReport {
        ProgressReport { lease: Lease { id, token }, fraction: Some(fraction), text: None, checkpoint: None }
    }

    #[test]
    fn the_last_report_of_a_lease_counts_and_another_token_of_the_job_waits_for_the_next_round() {
        let reports = [report(2, 1, 0.1), report(1, 1, 0.2), report(2, 1, 0.3), report(2, 9, 0.4)];
        let parts = rounds(&reports.iter().collect::<Vec<_>>());
        assert_eq!(parts, [vec![report(1, 1, 0.2), report(2, 1, 0.3)], vec![report(2, 9, 0.4)]]);
    }

    #[test]
    fn guessing_tokens_costs_three_statements_and_no_more() {
        let reports: Vec<_> = (0..10_000).map(|token| report(1, token, 0.5)).collect();
        assert_eq!(rounds(&reports.iter().collect::<Vec<_>>()).len(), ROUNDS);
    }
}
