//! All of this broker's leases depend on one row, which is renewed here. If a broker was away for longer than its lease
//! (stopped, or cut off), the others have given it up. Then it starts over under a new id, with the leases that its
//! workers still hold. If somebody keeps its row locked, it does so before the lease ends, and nothing is lost.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{Context, held_leases::end_others};
use crate::{backoff::Backoff, config::Config, job::Lease, store::StoreError};

/// The most leases in a statement.
const BATCH: usize = 1_000;
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How the renewals have gone.
#[derive(Debug)]
pub(crate) struct Renewal {
    /// Since when without a break. While that is shorter than a lease, other brokers may only seem to be gone because
    /// Postgres was away for all of them.
    since: Option<Instant>,
    /// The last one.
    last: Instant,
    /// The broker has left its number to end. A claim that was under way then has put leases under it, which have to come
    /// along.
    once_more: bool,
}

impl Renewal {
    /// The broker has registered now.
    pub(crate) fn new() -> Self {
        Self { since: Some(Instant::now()), last: Instant::now(), once_more: false }
    }

    /// Whether it has gone on for a lease without a break. Otherwise others that have expired may only have been held up, too, and
    /// renew at any moment.
    pub(super) fn is_steady(&self, config: &Config) -> bool {
        self.last.elapsed() < others_last(config)
            && self.since.is_some_and(|since| since.elapsed() >= config.broker_lease)
    }
}

pub(super) async fn always(context: Arc<Context>) {
    loop {
        let interval = context.config.renew_interval;
        let soon = interval.min(context.config.broker_lease / 8);
        let pause = if context.renewal.lock().once_more { soon } else { interval };
        tokio::time::sleep(pause).await;
        // Whoever comes back first after an outage must not find the others in a pause that is longer than its lease.
        let longest = LONGEST_PAUSE.min(context.config.broker_lease / 4);
        let mut backoff = Backoff::new(Duration::from_millis(100).min(longest), longest);
        while let Err(error) = run_once(&context).await {
            context.store.failed("renewing the broker's lease", &error);
            backoff.pause().await;
        }
    }
}

/// Renews the lease, or starts over under a new number.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let lease = context.config.broker_lease;
    let asked = Instant::now();
    let renewed = context.store.renew_broker(context.dispatch.broker_id(), lease, context.registry.version()).await;
    let spent = context.renewal.lock().last.elapsed();
    match &renewed {
        Ok(true) | Err(StoreError::Locked(_)) if spent < others_last(&context.config) => {}
        _ => context.renewal.lock().since = None,
    }
    let _number = context.number.lock().await;
    match renewed {
        Ok(true) => {}
        Ok(false) => {
            let id = start_over(context).await?;
            tracing::warn!(broker = id, "this broker was away for longer than its lease; starting over under a new id");
        }
        // Its leases must come along before they end with the old number.
        Err(error @ StoreError::Locked(_)) if spent >= lease / 2 => {
            let id = match start_over(context).await {
                // The table is locked, by the same.
                Err(StoreError::Locked(_)) => return Err(error),
                id => id?,
            };
            context.renewal.lock().once_more = true;
            tracing::warn!(broker = id, %error, "the row of this broker stays locked; going on under a new id");
        }
        Err(error) => return Err(error),
    }
    context.renewal.lock().last = asked;
    let once_more = !context.readopt.load(Ordering::Acquire) && std::mem::take(&mut context.renewal.lock().once_more);
    if (context.readopt.swap(false, Ordering::AcqRel) || once_more)
        && let Err(error) = readopt(context).await
    {
        context.readopt.store(true, Ordering::Release);
        return Err(error);
    }
    context.renewal.lock().since.get_or_insert_with(Instant::now);
    Ok(())
}

/// For how long a broker may go without a renewal and still know that the others can have renewed meanwhile. Whatever held it up
/// may have held up all; one that renewed an interval earlier has expired first, and its workers go on with their jobs.
fn others_last(config: &Config) -> Duration {
    let interval = config.renew_interval;
    // With the longest interval, half of a lease, renewals must not count as breaks.
    config.broker_lease.saturating_sub(interval).max(interval * 3 / 2)
}

/// Registers the broker again; the leases of its workers have to come along.
async fn start_over(context: &Context) -> Result<i32, StoreError> {
    let id = context.store.register_broker(&context.config.name, context.config.broker_lease).await?;
    context.readopt.store(true, Ordering::Release);
    context.dispatch.set_broker_id(id);
    Ok(id)
}

/// Puts the leases that the workers here still have under this broker's number, if they are still there.
/// Leases that their workers took to another broker stay there.
async fn readopt(context: &Context) -> Result<(), StoreError> {
    let mut held_before: Vec<Lease> = context.sessions.all().into_iter().flat_map(|s| s.owned()).collect();
    held_before.sort_unstable();
    held_before.dedup_by_key(|lease| lease.id);
    let mut locked = 0;
    let (id, ids) = (context.dispatch.broker_id(), context.dispatch.broker_ids());
    for batch in held_before.chunks(BATCH) {
        let kept = context.store.adopt(batch, id, Some(&ids)).await?.adopted;
        locked += kept.iter().filter(|adopted| adopted.locked).count();
        let kept: HashSet<Lease> = kept.iter().map(|a| a.lease).collect();
        let others: Vec<Lease> = batch.iter().filter(|lease| !kept.contains(lease)).copied().collect();
        end_others(context, &others, &HashMap::new()).await?;
    }
    match locked {
        0 => Ok(()),
        _ => Err(StoreError::Locked(format!("another transaction has locked {locked} leases of workers here").into())),
    }
}
