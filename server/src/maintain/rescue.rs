//! Maintenance task: releases the leases of brokers whose row has expired. The first broker that notices does it.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::{job::Ready, store::StoreError};

/// Maximum number of leases in a statement.
const BATCH: i32 = 1_000;
/// Interval of rescues that no sweep has requested. They find leases of brokers that no longer have a row.
const UNASKED: Duration = Duration::from_secs(60);

pub(super) async fn run(context: Arc<Context>) {
    loop {
        until_done(&context, "rescuing leases", || run_once(&context)).await;
        tokio::select! {
            () = context.rescue_now.notified() => {}
            () = tokio::time::sleep(UNASKED) => {}
        }
    }
}

/// Releases every lease whose broker has expired, and deletes the broker's row.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    if !context.renewal.lock().is_steady(&context.config) {
        // After an outage of Postgres the rows of all brokers have expired. This broker gives the others time to renew,
        // and the sweep requests the rescue again. Brokers that do not renew are gone.
        return Ok(());
    }
    let mut keyed = false;
    loop {
        let moved = match context.store.rescue(BATCH, context.dispatch.broker_id()).await {
            // Another transaction has locked a job key. Jobs that free their key are released in separate statements.
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

/// Deletes the rows of expired brokers and of their workers.
async fn delete_brokers(context: &Context) -> Result<(), StoreError> {
    match context.store.delete_expired_brokers().await {
        // Remaining rows do no harm, and the sweep requests a rescue again.
        Err(StoreError::Locked(error)) => tracing::debug!(%error, "rows of expired brokers are locked"),
        deleted => deleted?,
    }
    Ok(())
}
