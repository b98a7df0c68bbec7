//! All of this broker's leases hang on one row, which is renewed here. A broker that was away for
//! longer than its lease (stopped, or cut off) was given up by the others: it starts over under a new
//! number with the leases that its workers still have.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use tokio::time::Instant;

use super::{Context, until_done};
use crate::{job::Lease, session::CancelReason, store::StoreError};

/// Leases in a statement at most.
const BATCH: usize = 1_000;

pub(super) async fn always(context: Arc<Context>) {
    loop {
        tokio::time::sleep(context.config.renew_interval).await;
        until_done("renewing the broker's lease", || run_once(&context)).await;
    }
}

/// Renews, or starts over.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let lease = context.config.broker_lease;
    let renewed = context.store.renew_broker(context.dispatch.broker_id(), lease).await;
    if !matches!(renewed, Ok(true)) {
        *context.renewing_since.lock() = None;
    }
    if !renewed? {
        let id = context.store.register_broker(&context.config.name, lease).await?;
        tracing::warn!(
            broker = id,
            "this broker was away for longer than its lease; it starts over under a new number"
        );
        context.readopt.store(true, Ordering::Release);
        context.dispatch.set_broker_id(id);
    }
    if context.readopt.load(Ordering::Acquire) {
        readopt(context).await?;
        context.readopt.store(false, Ordering::Release);
    }
    context.renewing_since.lock().get_or_insert_with(Instant::now);
    Ok(())
}

/// Puts the leases that the workers here still have under the new number.
async fn readopt(context: &Context) -> Result<(), StoreError> {
    let mut held: Vec<Lease> = context.sessions.all().iter().flat_map(|s| s.held()).collect();
    held.sort_unstable();
    held.dedup_by_key(|lease| lease.id);
    for batch in held.chunks(BATCH) {
        let kept = context.store.adopt(batch, context.dispatch.broker_id()).await?;
        let kept: HashSet<Lease> = kept.iter().map(|a| a.lease).collect();
        let lost: Vec<Lease> = batch.iter().filter(|l| !kept.contains(l)).copied().collect();
        context.sessions.cancel(&lost, CancelReason::LeaseLost, &context.dispatch);
    }
    Ok(())
}
