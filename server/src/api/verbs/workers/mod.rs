//! Calls for workers, and the list of workers.

mod extend;
mod list;
mod progress;
pub(crate) mod pull;
mod results;
mod settle;
pub(super) mod work;

pub(crate) use extend::ExtendJobs;
pub(crate) use list::ListWorkers;
pub(crate) use progress::ReportProgress;
pub(crate) use pull::PullJobs;
pub(crate) use results::GetResults;
pub(crate) use settle::SettleJobs;

use howdah_core::{
    error::Error,
    job::{Lease, SettleStatus},
};
use howdah_proto::v1;
use tonic::Response;

use super::{Answer, Call, Merge, router::note_unanswered};
use crate::api::permit;

/// Calls `handle` with the items whose jobs the caller may work on. The other items get the status `LeaseLost`. Returns the
/// statuses in the order of the leases.
async fn of_own<T>(
    call: &Call,
    leases: &[Lease],
    items: Vec<T>,
    handle: impl AsyncFnOnce(Vec<T>) -> Vec<SettleStatus>,
) -> Result<Vec<SettleStatus>, Error> {
    let is_own = permit::own_leases(&call.broker, &call.caller, leases).await?;
    let own = items.into_iter().zip(&is_own).filter(|(_, own)| **own).map(|(item, _)| item).collect();
    let mut statuses = handle(own).await.into_iter();
    // `handle` may return too few statuses. Then it is unknown whether the remaining items took effect.
    let status = |own| if own { statuses.next().unwrap_or(SettleStatus::Unavailable) } else { SettleStatus::LeaseLost };
    Ok(is_own.into_iter().map(status).collect())
}

/// Calls each store with its items. An item whose store does not answer gets the result UNAVAILABLE. `lease` returns the job id
/// and the token of an item. `with` builds the request for a store, and `results` returns the results in a response.
async fn by_lease<V: Merge, I>(
    call: &Call,
    (request, items): (V::Request, Vec<I>),
    lease: impl Fn(&I) -> (i64, i64),
    with: impl Fn(&V::Request, Vec<I>) -> V::Request,
    results: impl Fn(&mut V::Response) -> &mut Vec<v1::SettleResult>,
) -> Answer<V> {
    let (answer, unanswered) =
        call.split_items::<V, _, _>(request, items, (|item| lease(item).0, &lease), with).await?;
    let mut answer = answer.unwrap_or_else(|| Response::new(V::Response::default()));
    for (store, leases) in &unanswered {
        results(answer.get_mut()).extend(leases.iter().map(|&(id, token)| unavailable(store, id, token)));
    }
    let names: Vec<&str> = unanswered.iter().map(|(name, _)| name.as_str()).collect();
    note_unanswered(&mut answer, &names);
    Ok(answer)
}

/// Result for an item whose store does not answer. It is unknown whether the item took effect, so the worker must send it again.
fn unavailable(store: &str, id: i64, token: i64) -> v1::SettleResult {
    v1::SettleResult {
        id,
        token,
        status: v1::SettleStatus::Unavailable.into(),
        message: format!("store {store} did not answer in time; send this item again"),
    }
}
