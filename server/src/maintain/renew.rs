//! Maintenance task: renews the broker row, on which all leases of this broker depend. A broker that was stopped or
//! disconnected for longer than its lease has expired for the other brokers. It continues under a new id, with the
//! leases that its workers still hold. If another transaction keeps its row locked, it does so before its lease ends,
//! and no lease is lost.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{Context, held_leases::end_others};
use crate::{backoff::Backoff, config::Config, job::Lease, store::StoreError};

/// Maximum number of leases in a statement.
const BATCH: usize = 1_000;
/// Maximum pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// State of the renewals.
#[derive(Debug)]
pub(crate) struct Renewal {
    /// Time since which renewals have succeeded without a break. Until this is longer than a lease, other brokers may
    /// only appear expired because Postgres was unreachable for all brokers.
    since: Option<Instant>,
    /// Time of the last renewal.
    last: Instant,
    /// The broker has replaced its id. A claim in progress may have put leases under the old id, so the leases must be
    /// adopted once more.
    readopt_again: bool,
}

impl Renewal {
    /// Creates the state of a broker that has just registered.
    pub(crate) fn new() -> Self {
        Self { since: Some(Instant::now()), last: Instant::now(), readopt_again: false }
    }

    /// Returns whether renewals have succeeded without a break for the duration of a lease. Otherwise expired brokers
    /// may only have been delayed as well, and may renew at any moment.
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
        // After an outage, all brokers must renew before the first one that did may rescue leases. So a pause is much
        // shorter than a lease.
        let longest = LONGEST_PAUSE.min(context.config.broker_lease / 4);
        let mut backoff = Backoff::new(Duration::from_millis(100).min(longest), longest);
        while let Err(error) = run_once(&context).await {
            context.store.log_failure("renewing the broker's lease", &error);
            backoff.pause().await;
        }
    }
}

/// Renews the lease, or continues under a new id.
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
        // Half of the lease has passed and the row is still locked. The broker continues under a new id now, so that it
        // can adopt its leases before they expire with the old one.
        Err(error @ StoreError::Locked(_)) if spent >= lease / 2 => {
            let id = match start_over(context).await {
                // The new row is blocked, too: the other transaction has locked the whole table.
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

/// Returns the longest gap between two renewals that counts as regular. The cause of a longer gap may have delayed all
/// brokers. Then a broker that renewed earlier expires first, although its workers continue with their jobs.
fn others_last(config: &Config) -> Duration {
    let interval = config.renew_interval;
    // With the longest interval, which is half of a lease, regular renewals must not count as breaks.
    config.broker_lease.saturating_sub(interval).max(interval * 3 / 2)
}

/// Registers the broker under a new id. The leases of its workers must be adopted afterwards.
async fn start_over(context: &Context) -> Result<i32, StoreError> {
    let id = context.store.register_broker(&context.config.name, context.config.broker_lease).await?;
    context.readopt.store(true, Ordering::Release);
    context.dispatch.set_broker_id(id);
    Ok(id)
}

/// Moves the leases that workers of this broker still hold to its new id, if they still exist. Leases that workers have
/// taken to another broker stay there.
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
