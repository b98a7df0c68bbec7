//! While it runs, progress: gather reports, write them in batches, answer after the commit.
//!
//! One writer, so that what a worker said last is what stays. While it waits for the disk, the next batch
//! gathers: of many reports of one job only the last is written.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{
    broker::Lanes,
    config::Config,
    job::{Lease, ProgressReport, SettleStatus},
    store::{Store, StoreError},
};

/// Reports in a batch, about; a message is never split.
const BATCH: usize = 2_000;
/// Bytes of texts and checkpoints in a batch, about.
const BATCH_BYTES: usize = 8 << 20;
/// What a report weighs besides.
const REPORT_BYTES: usize = 256;
/// Tokens of one job in a batch that are tried; there is one lease, and one that it may have replaced.
const ROUNDS: usize = 3;

/// Reports that came together and are answered together.
struct Submission {
    reports: Vec<ProgressReport>,
    bytes: usize,
    done: oneshot::Sender<Vec<SettleStatus>>,
    /// Held until they are written.
    _room: Option<OwnedSemaphorePermit>,
}

/// Where reports gather.
pub struct Progress {
    /// `None`: closed.
    queue: Mutex<Option<mpsc::UnboundedSender<Submission>>>,
    room: Arc<Semaphore>,
    most_kib: usize,
}

/// An answer to come.
pub struct Pending {
    count: usize,
    answer: oneshot::Receiver<Vec<SettleStatus>>,
}

impl Pending {
    /// One status for each report, in order, after the commit.
    pub async fn wait(self) -> Vec<SettleStatus> {
        self.answer.await.unwrap_or_else(|_| vec![SettleStatus::Unavailable; self.count])
    }
}

impl Progress {
    /// Starts the writer.
    pub(crate) fn start(lanes: &mut Lanes, config: &Config, store: &Store) -> Self {
        let (queue, submissions) = mpsc::unbounded_channel();
        lanes.spawn("progress", write_all(store.clone(), submissions));
        let most_kib = (config.limits.gathered_bytes >> 10).max(1);
        Self { queue: Mutex::new(Some(queue)), room: Arc::new(Semaphore::new(most_kib)), most_kib }
    }

    /// Takes reports to be written, after those that were taken before; waits while too many bytes have gathered.
    pub async fn submit(&self, reports: Vec<ProgressReport>) -> Pending {
        let (done, answer) = oneshot::channel();
        let count = reports.len();
        if count > 0 {
            let bytes = reports.iter().map(|report| REPORT_BYTES + report.weight()).sum::<usize>();
            // More than there is room for may pass alone.
            let kib = bytes.div_ceil(1 << 10).min(self.most_kib) as u32;
            let room = self.room.clone().acquire_many_owned(kib).await.ok();
            if let Some(queue) = &*self.queue.lock() {
                // A writer that is gone drops it, which is an answer.
                let _ = queue.send(Submission { reports, bytes, done, _room: room });
            }
        }
        Pending { count, answer }
    }

    /// Takes no more; what has gathered is still written.
    pub fn close(&self) {
        *self.queue.lock() = None;
    }
}

async fn write_all(store: Store, mut submissions: mpsc::UnboundedReceiver<Submission>) {
    while let Some(first) = submissions.recv().await {
        let (mut count, mut bytes) = (first.reports.len(), first.bytes);
        let mut batch = vec![first];
        while count < BATCH
            && bytes < BATCH_BYTES
            && let Ok(next) = submissions.try_recv()
        {
            count += next.reports.len();
            bytes += next.bytes;
            batch.push(next);
        }
        let reports: Vec<&ProgressReport> = batch.iter().flat_map(|submission| &submission.reports).collect();
        let mut statuses = write(&store, &reports).await.into_iter();
        for Submission { reports, done, .. } in batch {
            // Whoever asked may have gone away.
            let _ = done.send(statuses.by_ref().take(reports.len()).collect());
        }
    }
}

/// One status for each report, in order.
async fn write(store: &Store, reports: &[&ProgressReport]) -> Vec<SettleStatus> {
    let mut statuses: HashMap<Lease, SettleStatus> = HashMap::new();
    for round in rounds(reports) {
        let round: Vec<&ProgressReport> = round.iter().collect();
        match store.report_progress(&round).await {
            Ok(ids) => {
                let ids: HashSet<i64> = ids.into_iter().collect();
                statuses.extend(round.iter().map(|report| {
                    let found = ids.contains(&report.lease.id);
                    (report.lease, if found { SettleStatus::Ok } else { SettleStatus::LeaseLost })
                }));
            }
            Err(error) => {
                if let StoreError::Refused(_) = &error {
                    tracing::error!(%error, "progress reports were refused");
                }
            }
        }
    }
    // What was in no round, or not written, is not known to have taken effect.
    reports.iter().map(|report| statuses.get(&report.lease).copied().unwrap_or(SettleStatus::Unavailable)).collect()
}

/// Reports merged by lease, then parted so that an id is in a statement once, each part sorted by id.
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
    fn of_one_lease_the_last_counts_and_a_second_token_waits_for_its_turn() {
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
