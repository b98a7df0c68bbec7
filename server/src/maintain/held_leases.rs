//! What this broker remembers of its workers' leases, compared with the tables: a lease that somebody else has ended is
//! told to its worker, and its place in the window is free. A notification only says where to look, and when: anybody with a
//! login may send one, and one may be lost.

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

/// Leases in a statement at most.
const BATCH: usize = 1_000;
/// How often all leases are compared that are held for as long; shorter ones are mostly settled before.
const INTERVAL: Duration = Duration::from_secs(1);
/// However many there are, not less often than this.
const SLOWEST: Duration = Duration::from_secs(5);
/// Pause between two looks at what others said: what comes meanwhile goes with the next.
const HINT_PAUSE: Duration = Duration::from_millis(10);
/// Jobs that others may have named and that were not looked at; all leases are compared in a moment anyway.
const MOST_HINTS: usize = 100_000;

/// Jobs of which others say that their leases have ended, and why.
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

pub(super) async fn always(context: Arc<Context>) {
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

/// Compares the leases that are held for long enough.
async fn compare_all(context: &Context) -> Result<(), StoreError> {
    let since = Instant::now().checked_sub(INTERVAL);
    compare(context, since.map(|since| held_before(context, since)).unwrap_or_default(), &HashMap::new()).await
}

/// Compares those of these jobs that are held here.
async fn follow(context: &Context, hints: &HashMap<i64, CancelReason>) -> Result<(), StoreError> {
    let held = context.sessions.all().into_iter().flat_map(|session| session.held());
    compare(context, held.filter(|lease| hints.contains_key(&lease.id)).collect(), hints).await
}

/// Leases that workers here hold since before this time.
fn held_before(context: &Context, time: Instant) -> Vec<Lease> {
    context.sessions.all().into_iter().flat_map(|session| session.held_before(time)).collect()
}

async fn compare(context: &Context, leases: Vec<Lease>, hints: &HashMap<i64, CancelReason>) -> Result<(), StoreError> {
    // While they go from one number of this broker to another, they seem to be another's.
    let _number = context.number.lock().await;
    if context.readopt.load(Ordering::Acquire) {
        return Ok(());
    }
    end_others(context, &leases, hints).await
}

/// Ends those of these leases that are not this broker's any more, for the workers here. Called while the broker keeps its
/// number.
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
        // What its worker has settled meanwhile is answered on that way; and it may have come back with a lease.
        let still: HashSet<Lease> = held_before(context, asked).into_iter().collect();
        let mut moved: HashSet<Lease> = HashSet::new();
        let mut by_reason: HashMap<Option<CancelReason>, Vec<Lease>> = HashMap::new();
        for EndedLease { lease, ending } in ended.into_iter().filter(|ended| still.contains(&ended.lease)) {
            let reason = match ending {
                LeaseEnding::Cancelled => Some(CancelReason::Cancelled),
                LeaseEnding::TimedOut => Some(CancelReason::Timeout),
                LeaseEnding::Lost => Some(hints.get(&lease.id).copied().unwrap_or(CancelReason::LeaseLost)),
                // The worker knows.
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
            context.release.release_left(context.sessions.moved(&moved, asked, &context.dispatch));
        }
    }
    Ok(())
}
