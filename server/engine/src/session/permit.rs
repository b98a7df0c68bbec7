//! Checks for workers whose credential does not cover every task type. Windows were checked when they were opened, so
//! only leases that the session does not hold have to be looked up. A lease of a task type without permission is
//! answered as lost, like an unknown lease.

use std::{collections::HashSet, sync::Arc, time::Duration};

use howdah_core::{
    error::Error,
    job::{Lease, SettleStatus, Settlement, TaskTypeName},
};
use tokio::time::sleep;

use super::{Answer, Session, SessionContext, Sessions};
use crate::{
    access::{Caller, Operation},
    store::StoreError,
};

/// Time for a worker to finish its jobs after its credential has ended.
const DRAIN_TIME: Duration = Duration::from_secs(15);

/// Returns the job ids of leases whose task types the caller has no permission to work on.
pub(super) async fn foreign_leases(
    context: &SessionContext,
    caller: &Caller,
    leases: impl Iterator<Item = Lease>,
) -> Result<HashSet<i64>, StoreError> {
    if caller.may_everywhere(Operation::Work) {
        return Ok(HashSet::new());
    }
    let ids: Vec<i64> = leases.map(|lease| lease.id).collect();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let types = context.store.types_of(&ids).await?;
    let may = |name: &str| TaskTypeName::parse(name).is_ok_and(|name| caller.may(Operation::Work, &name));
    Ok(types.into_iter().filter(|(_, _, task_type)| !may(task_type)).map(|(id, ..)| id).collect())
}

/// Removes the items of a message whose leases the worker may not use, and adds an answer for each to `refused`.
pub(super) async fn remove_foreign_items<T>(
    context: &SessionContext,
    session: &Session,
    accepted: Vec<T>,
    refused: &mut Vec<Answer>,
    lease: impl Fn(&T) -> Lease,
) -> Vec<T> {
    let unheld = accepted.iter().map(&lease).filter(|lease| !session.holds(*lease));
    let (foreign, status) = match foreign_leases(context, &session.caller(), unheld).await {
        Ok(foreign) if foreign.is_empty() => return accepted,
        Ok(foreign) => (foreign, SettleStatus::LeaseLost),
        Err(error) => {
            tracing::debug!(%error, "cannot look up the task types of leases");
            let unheld = accepted.iter().map(&lease).filter(|lease| !session.holds(*lease));
            (unheld.map(|lease| lease.id).collect(), SettleStatus::Unavailable)
        }
    };
    let (foreign_items, permitted): (Vec<T>, Vec<T>) =
        accepted.into_iter().partition(|item| foreign.contains(&lease(item).id));
    refused.extend(foreign_items.iter().map(|item| Answer { lease: lease(item), status: Ok(status) }));
    permitted
}

/// Removes outcomes whose next stage has a task type that the worker may not enqueue to, or that exceeds the quota of
/// its principal. Adds an answer for each to `refused`.
pub(super) async fn remove_denied_stages(
    context: &SessionContext,
    session: &Session,
    accepted: Vec<Settlement>,
    refused: &mut Vec<Answer>,
) -> Vec<Settlement> {
    if accepted.iter().all(|settlement| settlement.outcome.next_stage().is_none()) {
        return accepted;
    }
    let caller = session.caller();
    let mut permitted = Vec::with_capacity(accepted.len());
    for settlement in accepted {
        let checked = match caller.check_stage(&settlement.outcome) {
            Ok(()) => context.registry.create_stage(&settlement.outcome, caller.principal()).await,
            denied => denied,
        };
        match checked {
            Ok(()) => permitted.push(settlement),
            Err(error) => refused.push(Answer { lease: settlement.lease, status: Err(error.to_string()) }),
        }
    }
    permitted
}

/// Waits until the worker's credential has ended, asks the worker to drain, and returns the error that ends the stream.
/// The time in between lets the worker finish its jobs or move to another broker.
pub(super) async fn ended(context: &Arc<SessionContext>, session: &Arc<Session>) -> Error {
    let caller = session.caller();
    caller.ended().await;
    Sessions::drain_one(session, &context.dispatch);
    sleep(DRAIN_TIME).await;
    caller.ended_error()
}
