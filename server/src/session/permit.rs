//! What a worker may do whose credential is not for every task type. The jobs that it gets come through its windows, which
//! were checked; so only leases that its session does not hold have to be looked up. A foreign lease is lost for it, like an
//! unknown one.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{Answer, Session, SessionContext, Sessions};
use crate::{
    access::{Caller, Operation},
    error::Error,
    job::{Lease, SettleStatus, Settlement, TaskTypeName},
    store::StoreError,
};

/// How long a worker may take to finish what it holds after its credential has ended.
const LEAVE: Duration = Duration::from_secs(15);

/// Those of these leases whose jobs the caller may not work on.
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

/// Takes out of a message's items those that the worker may not touch; each gets an answer at once.
pub(super) async fn own_items<T>(
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
            tracing::debug!(%error, "cannot look up the types of leases");
            let unheld = accepted.iter().map(&lease).filter(|lease| !session.holds(*lease));
            (unheld.map(|lease| lease.id).collect(), SettleStatus::Unavailable)
        }
    };
    let (out, own): (Vec<T>, Vec<T>) = accepted.into_iter().partition(|item| foreign.contains(&lease(item).id));
    refused.extend(out.iter().map(|item| Answer { lease: lease(item), status: Ok(status) }));
    own
}

/// Takes out of a message's outcomes those that choose a next stage where the worker may not enqueue jobs, or that its principal
/// may not create; each gets an answer at once.
pub(super) async fn own_stages(
    context: &SessionContext,
    session: &Session,
    accepted: Vec<Settlement>,
    refused: &mut Vec<Answer>,
) -> Vec<Settlement> {
    if accepted.iter().all(|settlement| settlement.outcome.next_stage().is_none()) {
        return accepted;
    }
    let caller = session.caller();
    let mut own = Vec::with_capacity(accepted.len());
    for settlement in accepted {
        let checked = match caller.check_stage(&settlement.outcome) {
            Ok(()) => context.registry.create_stage(&settlement.outcome, caller.principal()).await,
            denied => denied,
        };
        match checked {
            Ok(()) => own.push(settlement),
            Err(error) => refused.push(Answer { lease: settlement.lease, status: Err(error.to_string()) }),
        }
    }
    own
}

/// Ready with the error that ends the stream, after the worker's credential has ended: it is told to drain first, so that
/// what it holds is finished or goes on elsewhere.
pub(super) async fn ended(context: &Arc<SessionContext>, session: &Arc<Session>) -> Error {
    let caller = session.caller();
    caller.ended().await;
    Sessions::drain_one(session, &context.dispatch);
    sleep(LEAVE).await;
    caller.ended_error()
}
