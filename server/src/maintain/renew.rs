//! All of this broker's leases depend on one row, which is renewed here. If a broker was away for longer than its lease
//! (stopped, or cut off), the others have given it up. Then it starts over under a new id, with the leases that its
//! workers still hold.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
};

use tokio::time::Instant;

use super::{Context, held_leases::end_others, until_done};
use crate::{job::Lease, store::StoreError};

/// The most leases in a statement.
const BATCH: usize = 1_000;

pub(super) async fn always(context: Arc<Context>) {
    loop {
        tokio::time::sleep(context.config.renew_interval).await;
        until_done(&context, "renewing the broker's lease", || run_once(&context)).await;
    }
}

/// Renews the lease, or starts over.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let lease = context.config.broker_lease;
    let renewed = context.store.renew_broker(context.dispatch.broker_id(), lease).await;
    if !matches!(renewed, Ok(true)) {
        *context.renewing_since.lock() = None;
    }
    let renewed = renewed?;
    let _number = context.number.lock().await;
    if !renewed {
        let id = context.store.register_broker(&context.config.name, lease).await?;
        tracing::warn!(broker = id, "this broker was away for longer than its lease; starting over under a new id");
        context.readopt.store(true, Ordering::Release);
        context.dispatch.set_broker_id(id);
    }
    if context.readopt.swap(false, Ordering::AcqRel)
        && let Err(error) = readopt(context).await
    {
        context.readopt.store(true, Ordering::Release);
        return Err(error);
    }
    context.renewing_since.lock().get_or_insert_with(Instant::now);
    Ok(())
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
