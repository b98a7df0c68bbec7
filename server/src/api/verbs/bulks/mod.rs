//! Calls for operators who change many jobs in the background. A bulk operation runs in one store: the home of its task type, unless
//! the call names another.

mod get;
pub(crate) mod list;
mod preview;
pub(super) mod start;
mod state;

pub(crate) use get::GetBulk;
pub(crate) use list::ListBulks;
pub(crate) use preview::PreviewBulk;
pub(crate) use start::StartBulk;
pub(crate) use state::{CancelBulk, PauseBulk, ResumeBulk};

use howdah_core::{
    error::Error,
    job::{Bulk, BulkSpec, TaskTypeName},
};
use howdah_engine::{
    access::{Caller, Operation},
    broker::SharedBroker,
    operate::bulk::no_bulk,
};
use howdah_proto::v1;
use tonic::Status;

use super::{Answer, Call, Verb};
use crate::{api::permit, stores::ConfiguredStore};

/// Returns the bulk operation. Fails with `NOT_FOUND` if the caller does not have the permission `operation` for its task type.
/// If the bulk operation moves jobs, `Operation::Operate` is required for both task types.
async fn own(call: &Call, operation: Operation, id: i64) -> Result<Bulk, Error> {
    let bulk = call.broker.operator.get_bulk(id).await?;
    let may = |name: &TaskTypeName| permit::may(&call.caller, operation, name.as_str());
    let to = bulk.spec.change.to_type().filter(|_| operation == Operation::Operate);
    let is_own = may(&bulk.spec.task_type) && to.is_none_or(may);
    if is_own { Ok(bulk) } else { Err(no_bulk(id)) }
}

/// Fills in the task type of an undo, from the bulk operation that it undoes.
async fn complete(call: &Call, spec: Option<v1::BulkSpec>) -> Result<Option<v1::BulkSpec>, Error> {
    let Some(mut spec) = spec else { return Ok(None) };
    if spec.operation() != v1::BulkOperation::Undo || spec.undo_bulk_id <= 0 {
        return Ok(Some(spec));
    }
    let undone = own(call, Operation::Operate, spec.undo_bulk_id).await?.spec.task_type;
    if spec.task_type.is_empty() {
        spec.task_type = undone.to_string();
    } else if spec.task_type != undone.as_str() {
        let problem = format!("is not {undone}, the task type of bulk operation {}; leave it out", spec.undo_bulk_id);
        return Err(Error::invalid("spec.task_type", problem));
    }
    Ok(Some(spec))
}

/// Checks that the caller may operate the task types that the jobs have before and after the bulk operation.
fn permitted(caller: &Caller, spec: &BulkSpec) -> Result<(), Error> {
    for task_type in [Some(&spec.task_type), spec.change.to_type()].into_iter().flatten() {
        caller.check(Operation::Operate, task_type)?;
    }
    match spec.change.to_type() {
        Some(to) => caller.check_reroute(&spec.task_type, to),
        None => Ok(()),
    }
}

/// Finds the store of a bulk operation by its id. If two stores use the id, the call must name the store.
async fn of_bulk(call: &Call, id: i64) -> Result<&SharedBroker, Status> {
    if let Some(broker) = call.named_broker()? {
        return Ok(broker);
    }
    let mut found: Vec<&ConfiguredStore> = Vec::new();
    for store in call.stores.all() {
        let broker = store.served()?.reachable()?;
        // Skips bulk operations that the caller may not read, as if they did not exist.
        match own(&call.at(broker), Operation::Read, id).await {
            Ok(_) => found.push(store),
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(call.only_found(&found, "id", &format!("is {id}, the id of a bulk operation"))?)
}

/// Returns the broker of the store in which a bulk operation with this spec runs.
async fn of_spec<'a>(call: &'a Call, spec: Option<&v1::BulkSpec>) -> Result<&'a SharedBroker, Status> {
    match spec {
        // An undo runs in the store of the bulk operation that it undoes.
        Some(spec) if spec.undo_bulk_id != 0 => of_bulk(call, spec.undo_bulk_id).await,
        spec => Ok(call.named_or_home(spec.map_or("", |spec| &spec.task_type)).await?),
    }
}

/// Runs a verb in a store, and writes the name of the store to the bulk operation in its response.
async fn in_store<V: Verb>(
    call: &Call,
    broker: &SharedBroker,
    request: V::Request,
    bulk: impl Fn(&mut V::Response) -> &mut Option<v1::Bulk>,
) -> Answer<V> {
    let mut answer = call.in_store::<V>(broker, request).await?;
    if let Some(bulk) = bulk(answer.get_mut()) {
        call.stores.name_of(broker).unwrap_or_default().clone_into(&mut bulk.store);
    }
    Ok(answer)
}
