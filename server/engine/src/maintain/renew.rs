//! Maintenance task: renews this broker's row, on which all its leases depend. If the broker was suspended or
//! disconnected for too long, its row has expired. It then registers under a new id and adopts the leases that its
//! workers still hold. If another transaction locks the row, the broker changes its id before the row expires, and
//! loses no lease.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use howdah_core::{config::Config, job::Lease};
use tokio::time::Instant;

use super::{Context, held_leases::end_others};
use crate::{backoff::Backoff, store::StoreError};

/// Maximum number of leases that one statement adopts.
const BATCH: usize = 1_000;
/// Maximum pause between two attempts to renew the row.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// State of the renewals of this broker's row.
#[derive(Debug)]
pub(crate) struct Renewal {
    /// Start of the period in which all renewals have succeeded. Until the period exceeds `broker_lease`, other brokers
    /// may only seem expired because Postgres was unreachable for all brokers.
    since: Option<Instant>,
    /// Time of the last successful renewal.
    last: Instant,
    /// Set after a change of the broker id. A claim in progress may have created leases under the old id, so the leases
    /// are adopted once more.
    readopt_again: bool,
}

impl Renewal {
    /// Creates the renewal state of a broker that has just registered.
    pub(crate) fn new() -> Self {
        Self { since: Some(Instant::now()), last: Instant::now(), readopt_again: false }
    }

    /// Returns whether renewals have succeeded for at least `broker_lease`. Otherwise brokers that seem expired may
    /// only have been delayed like this one, and may renew at any moment.
    pub(super) fn is_steady(&self, config: &Config) -> bool {
        self.last.elapsed() < others_last(config)
            && self.since.is_some_and(|since| since.elapsed() >= config.broker_lease)
    }
}

pub(super) async fn run(context: Arc<Context>) {
    loop {
        let interval = context.config.renew_interval;
        let soon = interval.min(context.config.broker_lease / 8);
        let pause = if context.renewal.lock().readopt_again { soon } else { interval };
        tokio::time::sleep(pause).await;
        // After an outage, all brokers must get time to renew before one of them starts to rescue leases. So the pause
        // is much shorter than `broker_lease`.
        let longest = LONGEST_PAUSE.min(context.config.broker_lease / 4);
        let mut backoff = Backoff::new(Duration::from_millis(100).min(longest), longest);
        while let Err(error) = run_once(&context).await {
            context.store.log_failure("renewing the broker's lease", &error);
            backoff.pause().await;
        }
    }
}

/// Renews this broker's row, or registers the broker under a new id.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let lease = context.config.broker_lease;
    let asked = Instant::now();
    let renewed = context.store.renew_broker(context.dispatch.broker_id(), lease, context.registry.version()).await;
    let spent = context.renewal.lock().last.elapsed();
    match &renewed {
        Ok(true) | Err(StoreError::Locked(_)) if spent < others_last(&context.config) => {}
        _ => context.renewal.lock().since = None,
    }
    let _id_change = context.id_change.lock().await;
    match renewed {
        Ok(true) => {}
        Ok(false) => {
            let id = start_over(context).await?;
            tracing::warn!(
                broker = id,
                "this broker renewed its row too late, and its lease has expired; continuing under a new id"
            );
        }
        // The row is still locked after half of `broker_lease`. The broker registers under a new id now, to adopt its
        // leases before the old row expires.
        Err(error @ StoreError::Locked(_)) if spent >= lease / 2 => {
            let id = match start_over(context).await {
                // Inserting the new row is blocked, too: the other transaction has locked the whole table.
                Err(StoreError::Locked(_)) => return Err(error),
                id => id?,
            };
            context.renewal.lock().readopt_again = true;
            tracing::warn!(broker = id, %error, "the row of this broker stays locked; continuing under a new id");
        }
        Err(error) => return Err(error),
    }
    context.renewal.lock().last = asked;
    let readopt_again =
        !context.readopt.load(Ordering::Acquire) && std::mem::take(&mut context.renewal.lock().readopt_again);
    if (context.readopt.swap(false, Ordering::AcqRel) || readopt_again)
        && let Err(error) = readopt(context).await
    {
        context.readopt.store(true, Ordering::Release);
        return Err(error);
    }
    context.renewal.lock().since.get_or_insert_with(Instant::now);
    Ok(())
}

/// Returns the longest gap between two renewals that is considered normal. The cause of a longer gap may have delayed
/// all brokers. Their rows then expire, although their workers continue with their jobs.
fn others_last(config: &Config) -> Duration {
    let interval = config.renew_interval;
    // `renew_interval` is at most half of `broker_lease`. The bound keeps regular renewals at that interval from
    // counting as gaps.
    config.broker_lease.saturating_sub(interval).max(interval * 3 / 2)
}

/// Registers the broker under a new id. The leases of its workers must be adopted afterwards.
async fn start_over(context: &Context) -> Result<i32, StoreError> {
    let id = context.store.register_broker(&context.config.name, context.config.broker_lease).await?;
    context.readopt.store(true, Ordering::Release);
    context.dispatch.set_broker_id(id);
    Ok(id)
}

/// Moves the leases that this broker's workers still hold to the new broker id, if the leases still exist. Leases that
/// a worker has taken to another broker are not moved.
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
        _ => Err(StoreError::Locked(format!("another transaction has locked {locked} leases of this broker").into())),
    }
}
