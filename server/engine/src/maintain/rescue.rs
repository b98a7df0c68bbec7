//! Maintenance task: releases the leases of brokers whose row has expired. The first broker that notices the expiry
//! does the work.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::store::StoreError;

/// Maximum number of leases in a statement.
const BATCH: i32 = 1_000;
/// Interval of rescues that run without a request by the sweep. They find leases of brokers whose row was deleted.
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
        // After an outage of Postgres, the rows of all brokers have expired. This broker gives the others time to
        // renew. The next sweep requests the rescue again if a row is still expired.
        return Ok(());
    }
    let mut keyed = false;
    loop {
        let moved = match context.store.rescue(BATCH, context.dispatch.broker_id()).await {
            // Another transaction has locked a job key. Jobs that free their key when released then get separate
            // statements.
            Err(StoreError::Locked(_)) => {
                keyed = true;
                context.store.rescue_unkeyed(BATCH, context.dispatch.broker_id()).await?
            }
            moved => moved?,
        };
        let jobs: u64 = moved.iter().map(|ready| ready.jobs).sum();
        if jobs > 0 {
            tracing::warn!(jobs, "released the leases of brokers whose rows have expired");
            context.metrics.count_settled("lost", jobs as usize);
        }
        context.dispatch.ready(moved.into_iter());
        if jobs < BATCH as u64 {
            while context.release.rescue_coordinated(BATCH, keyed).await? == BATCH as usize {}
            return delete_brokers(context).await;
        }
    }
}

/// Deletes the rows of expired brokers and of their workers.
async fn delete_brokers(context: &Context) -> Result<(), StoreError> {
    match context.store.delete_expired_brokers().await {
        // A later rescue deletes the locked rows, which do no harm meanwhile.
        Err(StoreError::Locked(error)) => tracing::debug!(%error, "rows of expired brokers are locked"),
        deleted => deleted?,
    }
    Ok(())
}
