//! Maintenance task: checks once a second whether the read replica is reachable, and measures its lag.

use std::{sync::Arc, time::Duration};

use super::Context;
use crate::store::StoreError;

const EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(context: Arc<Context>) {
    loop {
        if let Err(error) = run_once(&context).await {
            context.store.log_failure("reading the WAL position of the primary", &error);
        }
        tokio::time::sleep(EVERY).await;
    }
}

pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let measured = context.store.measure_replica().await;
    let state = context.store.replica_state();
    let metrics = &context.metrics.storage;
    metrics.replica_lag.set(state.and_then(|state| state.lag).unwrap_or_default().as_secs_f64());
    metrics.replica_is_read.set(i64::from(state.is_some_and(|state| state.is_read)));
    measured
}
