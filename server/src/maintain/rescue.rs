//! Takes back the leases of brokers that are gone. Whichever broker notices first does it.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::{job::Ready, store::StoreError};

/// The most leases in a statement.
const BATCH: i32 = 1_000;
/// How often to look without a reason, for leases of brokers that have no row any more.
const UNASKED: Duration = Duration::from_secs(60);

pub(super) async fn always(context: Arc<Context>) {
    loop {
        until_done(&context, "rescuing leases", || run_once(&context)).await;
        tokio::select! {
            () = context.rescue_now.notified() => {}
            () = tokio::time::sleep(UNASKED) => {}
        }
    }
}

/// Takes back every lease whose broker has expired, and deletes the broker's row.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    if !context.renewal.lock().is_steady(&context.config) {
        // After an outage of Postgres every broker has expired. They renew first; brokers that do not are gone. The
        // sweep asks for a rescue again.
        return Ok(());
    }
    let mut keyed = false;
    loop {
        let moved = match context.store.rescue(BATCH, context.dispatch.broker_id()).await {
            // A key is locked: the jobs that free theirs are taken back apart.
            Err(StoreError::Locked(_)) => {
                keyed = true;
                context.store.rescue_unkeyed(BATCH, context.dispatch.broker_id()).await?
            }
            moved => moved?,
        };
        let jobs: i64 = moved.iter().map(|m| m.jobs).sum();
        if jobs > 0 {
            tracing::warn!(jobs, "rescued jobs of a broker that is gone");
            context.metrics.count_settled("lost", jobs as usize);
        }
        context.dispatch.ready(moved.iter().map(|m| Ready {
            type_id: m.type_id,
            lowest_rank: m.lowest_rank,
            jobs: m.jobs as u64,
        }));
        if jobs < i64::from(BATCH) {
            while context.release.rescue_coordinated(BATCH, keyed).await? == BATCH as usize {}
            return delete_brokers(context).await;
        }
    }
}

/// Deletes the rows of expired brokers, and with them those of their workers.
async fn delete_brokers(context: &Context) -> Result<(), StoreError> {
    match context.store.delete_expired_brokers().await {
        // They lose nothing but their names by staying, and the sweep asks for a rescue again.
        Err(StoreError::Locked(error)) => tracing::debug!(%error, "rows of expired brokers are locked"),
        deleted => deleted?,
    }
    Ok(())
}
