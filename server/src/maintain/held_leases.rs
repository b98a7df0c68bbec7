//! Maintenance task: compares this broker's memory of its workers' leases with the tables. When a lease was ended
//! elsewhere, its worker is told and its window has room again. Notifications are only hints when and where to look:
//! any role with a login may send one, and one may be lost.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{Context, until_done};
use crate::{
    job::Lease,
    session::CancelReason,
    store::{EndedLease, LeaseEnding, StoreError},
};

/// Maximum number of leases in a statement.
const BATCH: usize = 1_000;
/// Interval of the full comparison, and the minimum age of the compared leases. Younger leases are usually settled
/// first.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval, even if comparing all leases takes long.
const SLOWEST: Duration = Duration::from_secs(5);
/// Pause between two batches of hints. Hints that arrive during the pause go into the next batch.
const HINT_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of pending hints. More are not needed, because all leases are compared soon.
const MOST_HINTS: usize = 100_000;

/// Jobs whose leases have ended according to other brokers, and why.
#[derive(Default)]
pub(crate) struct Hints {
    jobs: Mutex<HashMap<i64, CancelReason>>,
    arrived: Notify,
}

impl Hints {
    pub(super) fn add(&self, ids: Vec<i64>, reason: CancelReason) {
        let mut jobs = self.jobs.lock();
        for id in ids {
            if jobs.len() < MOST_HINTS {
                jobs.insert(id, reason);
            }
        }
        self.arrived.notify_one();
    }
}

pub(super) async fn run(context: Arc<Context>) {
    let mut next = Instant::now() + INTERVAL;
    loop {
        tokio::select! {
            () = sleep_until(next) => {
                let begun = Instant::now();
                until_done(&context, "comparing the leases of workers", || compare_all(&context)).await;
                next = Instant::now() + INTERVAL.max((begun.elapsed() * 10).min(SLOWEST));
            }
            () = context.ended_leases.arrived.notified() => {
                let hints = std::mem::take(&mut *context.ended_leases.jobs.lock());
                until_done(&context, "comparing leases that have ended", || follow(&context, &hints)).await;
                tokio::time::sleep(HINT_PAUSE).await;
            }
        }
    }
}

/// Compares the leases that have been held for at least `INTERVAL`.
async fn compare_all(context: &Context) -> Result<(), StoreError> {
    let since = Instant::now().checked_sub(INTERVAL);
    compare(context, since.map(|since| held_before(context, since)).unwrap_or_default(), &HashMap::new()).await
}

/// Compares the hinted leases that this broker's workers hold.
async fn follow(context: &Context, hints: &HashMap<i64, CancelReason>) -> Result<(), StoreError> {
    let held = context.sessions.all().into_iter().flat_map(|session| session.held());
    compare(context, held.filter(|lease| hints.contains_key(&lease.id)).collect(), hints).await
}

/// Returns leases that workers of this broker have held since before this time.
fn held_before(context: &Context, time: Instant) -> Vec<Lease> {
    context.sessions.all().into_iter().flat_map(|session| session.held_before(time)).collect()
}

async fn compare(context: &Context, leases: Vec<Lease>, hints: &HashMap<i64, CancelReason>) -> Result<(), StoreError> {
    // While leases move to a new id of this broker, they would appear to belong to another broker.
    let _id_change = context.id_change.lock().await;
    if context.readopt.load(Ordering::Acquire) {
        return Ok(());
    }
    end_others(context, &leases, hints).await
}

/// Ends the leases among `leases` that this broker no longer owns, and tells its workers. The caller must prevent a
/// change of the broker id meanwhile.
pub(super) async fn end_others(
    context: &Context,
    leases: &[Lease],
    hints: &HashMap<i64, CancelReason>,
) -> Result<(), StoreError> {
    for batch in leases.chunks(BATCH) {
        let asked = Instant::now();
        let ended = context.store.ended_leases(batch, &context.dispatch.broker_ids()).await?;
        if ended.is_empty() {
            continue;
        }
        // Excludes leases that the worker has settled meanwhile, which are answered separately, and leases that it has
        // resumed with.
        let still: HashSet<Lease> = held_before(context, asked).into_iter().collect();
        let mut moved: HashSet<Lease> = HashSet::new();
        let mut by_reason: HashMap<Option<CancelReason>, Vec<Lease>> = HashMap::new();
        for EndedLease { lease, ending } in ended.into_iter().filter(|ended| still.contains(&ended.lease)) {
            let reason = match ending {
                LeaseEnding::Cancelled => Some(CancelReason::Cancelled),
                LeaseEnding::TimedOut => Some(CancelReason::Timeout),
                LeaseEnding::Lost => Some(hints.get(&lease.id).copied().unwrap_or(CancelReason::LeaseLost)),
                // The worker settled the job, so it is not told.
                LeaseEnding::Settled => None,
                LeaseEnding::Moved => {
                    moved.insert(lease);
                    continue;
                }
            };
            by_reason.entry(reason).or_default().push(lease);
        }
        for (reason, leases) in by_reason {
            context.sessions.end(&leases, reason, &context.dispatch);
        }
        if !moved.is_empty() {
            context.release.release_left_behind(context.sessions.leases_moved(&moved, asked, &context.dispatch));
        }
    }
    Ok(())
}
