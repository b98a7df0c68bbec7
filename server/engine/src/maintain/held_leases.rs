//! Maintenance task: compares the leases that this broker remembers for its workers with the leases in the database. If
//! a lease was ended elsewhere, the broker informs the worker and frees the room in the window. Notifications are only
//! hints when to compare: any database role can send one, and one may be lost.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use howdah_core::job::Lease;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{Context, until_done};
use crate::{
    session::CancelReason,
    store::{EndedLease, LeaseEnding, StoreError},
};

/// Maximum number of leases in a statement.
const BATCH: usize = 1_000;
/// Interval of comparing all leases, and minimum age of a compared lease. Most leases are settled before that age.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval of comparing all leases, even if a comparison takes long.
const SLOWEST: Duration = Duration::from_secs(5);
/// Pause between two comparisons of hinted leases. Hints that arrive during the pause are collected.
const HINT_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of pending hints. Further hints are dropped, because all leases are compared within seconds.
const MOST_HINTS: usize = 100_000;

/// Hints: jobs whose leases have ended according to other brokers, with the reason.
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
                until_done(&context, "comparing workers' leases with the database", || compare_all(&context)).await;
                next = Instant::now() + INTERVAL.max((begun.elapsed() * 10).min(SLOWEST));
            }
            () = context.ended_leases.arrived.notified() => {
                let hints = std::mem::take(&mut *context.ended_leases.jobs.lock());
                until_done(&context, "checking leases that may have ended", || follow(&context, &hints)).await;
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

/// Compares the leases of this broker's workers for which hints have arrived.
async fn follow(context: &Context, hints: &HashMap<i64, CancelReason>) -> Result<(), StoreError> {
    let held = context.sessions.all().into_iter().flat_map(|session| session.held());
    compare(context, held.filter(|lease| hints.contains_key(&lease.id)).collect(), hints).await
}

/// Returns the leases that workers of this broker held before `time` and still hold.
fn held_before(context: &Context, time: Instant) -> Vec<Lease> {
    context.sessions.all().into_iter().flat_map(|session| session.held_before(time)).collect()
}

async fn compare(context: &Context, leases: Vec<Lease>, hints: &HashMap<i64, CancelReason>) -> Result<(), StoreError> {
    // Waits until a change of the broker id is complete. During the change, leases under the new id would look like
    // leases of another broker.
    let _id_change = context.id_change.lock().await;
    if context.readopt.load(Ordering::Acquire) {
        return Ok(());
    }
    end_others(context, &leases, hints).await
}

/// Ends the leases in `leases` that this broker no longer owns, and informs the workers. The caller must hold
/// `id_change`.
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
        // Considers only leases that are still held. The worker may meanwhile have settled a lease or resumed with it.
        let still: HashSet<Lease> = held_before(context, asked).into_iter().collect();
        let mut moved: HashSet<Lease> = HashSet::new();
        let mut by_reason: HashMap<Option<CancelReason>, Vec<Lease>> = HashMap::new();
        for EndedLease { lease, ending } in ended.into_iter().filter(|ended| still.contains(&ended.lease)) {
            let reason = match ending {
                LeaseEnding::Cancelled => Some(CancelReason::Cancelled),
                LeaseEnding::TimedOut => Some(CancelReason::Timeout),
                LeaseEnding::Lost => Some(hints.get(&lease.id).copied().unwrap_or(CancelReason::LeaseLost)),
                // The worker settled the job itself, so it receives no message.
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
