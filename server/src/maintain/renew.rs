//! All of this broker's leases hang on one row, which is renewed here. A broker that was away for
//! longer than its lease (stopped, or cut off) was given up by the others: it starts over under a new
//! number with the leases that its workers still have.

use std::sync::Arc;

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
    if context.store.renew_broker(context.dispatch.broker_id(), lease).await? {
        return Ok(());
    }
    let id = context.store.register_broker(&context.config.name, lease).await?;
    tracing::warn!(broker = id, "this broker was away for longer than its lease; it starts over under a new number");
    context.dispatch.set_broker_id(id);
    let mut held: Vec<Lease> = context.sessions.all().iter().flat_map(|s| s.held()).collect();
    held.sort_unstable();
    for batch in held.chunks(BATCH) {
        let kept: Vec<Lease> = context.store.adopt(batch, id).await?.iter().map(|a| a.lease).collect();
        let lost: Vec<Lease> = batch.iter().filter(|l| !kept.contains(l)).copied().collect();
        context.sessions.cancel(&lost, CancelReason::LeaseLost, &context.dispatch);
    }
    Ok(())
}
