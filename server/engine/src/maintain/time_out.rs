//! Maintenance task: ends attempts whose deadline has passed. Their jobs are retried according to their retry policies,
//! or become dead.

use std::{collections::HashMap, sync::Arc};

use howdah_core::job::Lease;

use super::{Context, until_done};
use crate::{session::CancelReason, store::StoreError, wake::Loss};

/// Maximum number of leases in a statement.
const BATCH: i32 = 1_000;

pub(super) async fn run(context: Arc<Context>) {
    loop {
        context.wake.deadline_alarm().rung().await;
        until_done(&context, "ending attempts that timed out", || run_once(&context)).await;
    }
}

/// Ends every attempt whose deadline has passed, and informs the workers.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    loop {
        let (ended, more) = context.release.time_out(BATCH).await?;
        let mut by_broker: HashMap<i32, Vec<Lease>> = HashMap::new();
        for (lease, broker) in ended {
            if let Some(broker) = broker {
                by_broker.entry(broker).or_default().push(lease);
            }
        }
        for (broker, leases) in by_broker {
            if broker == context.dispatch.broker_id() {
                context.sessions.cancel(&leases, CancelReason::Timeout, &context.dispatch);
            } else {
                context.wake.lost_elsewhere(broker, leases.iter().map(|lease| lease.id).collect(), Loss::TimedOut);
            }
        }
        if !more {
            return context.set_alarms().await;
        }
    }
}
