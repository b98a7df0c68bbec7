//! `SettleJobs`, `ExtendJobs` and `ReportProgress`: outcomes of attempts, extensions of leases, and progress reports, for
//! workers without a stream.

use std::time::Duration;

use howdah_core::job::{Lease, ProgressReport, SettleStatus, Settlement};

use crate::api::{
    check::outcomes::{self, Items},
    verbs::{prelude::*, router::note_unanswered},
};

impl Verb for SettleJobs {
    const RULE: Rule = Rule::Types(Operation::Work);

    type Args = Items<Settlement>;

    fn check(
        request: v1::SettleJobsRequest,
        cluster: &ClusterSettings,
        limits: &Limits,
    ) -> Result<Items<Settlement>, Error> {
        outcomes::settle(request.outcomes, cluster, limits)
    }

    async fn run(call: &mut Call, items: Items<Settlement>) -> Result<v1::SettleJobsResponse, Error> {
        let workers = &call.broker.workers;
        for settlement in &items.accepted {
            call.caller.check_stage(&settlement.outcome)?;
            workers.registry.create_stage(&settlement.outcome, call.caller.principal()).await?;
        }
        let leases: Vec<Lease> = items.accepted.iter().map(|settlement| settlement.lease).collect();
        let settle = async |own| workers.settle.settle(own).await;
        let statuses = of_own(call, &leases, items.accepted, settle).await?;
        Ok(v1::SettleJobsResponse { results: outcomes::settle_results(items.refused, leases, statuses) })
    }

    async fn route(call: &Call, mut request: v1::SettleJobsRequest) -> Answer<Self> {
        let items = std::mem::take(&mut request.outcomes);
        let with = |_: &v1::SettleJobsRequest, outcomes| v1::SettleJobsRequest { outcomes };
        by_lease::<Self, _>(call, (request, items), |item| (item.id, item.token), with, |all| &mut all.results).await
    }
}

merged!(SettleJobs: results);

impl Verb for ExtendJobs {
    const RULE: Rule = Rule::Types(Operation::Work);

    type Args = Items<(Lease, Duration)>;

    fn check(request: v1::ExtendJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        outcomes::extend(request.extensions, cluster)
    }

    async fn run(call: &mut Call, items: Self::Args) -> Result<v1::ExtendJobsResponse, Error> {
        let leases: Vec<Lease> = items.accepted.iter().map(|&(lease, _)| lease).collect();
        let extend = async |own| call.broker.workers.settle.extend(own).await;
        let statuses = of_own(call, &leases, items.accepted, extend).await?;
        Ok(v1::ExtendJobsResponse { results: outcomes::settle_results(items.refused, leases, statuses) })
    }

    async fn route(call: &Call, mut request: v1::ExtendJobsRequest) -> Answer<Self> {
        let items = std::mem::take(&mut request.extensions);
        let with = |_: &v1::ExtendJobsRequest, extensions| v1::ExtendJobsRequest { extensions };
        by_lease::<Self, _>(call, (request, items), |item| (item.id, item.token), with, |all| &mut all.results).await
    }
}

merged!(ExtendJobs: results);

impl Verb for ReportProgress {
    const RULE: Rule = Rule::Types(Operation::Work);

    type Args = Items<ProgressReport>;

    fn check(request: v1::ReportProgressRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        outcomes::progress(request.reports, cluster)
    }

    async fn run(call: &mut Call, items: Self::Args) -> Result<v1::ReportProgressResponse, Error> {
        let leases: Vec<Lease> = items.accepted.iter().map(|report| report.lease).collect();
        let report = async |own| call.broker.workers.progress.submit(own).await.wait().await;
        let statuses = of_own(call, &leases, items.accepted, report).await?;
        Ok(v1::ReportProgressResponse { results: outcomes::settle_results(items.refused, leases, statuses) })
    }

    async fn route(call: &Call, mut request: v1::ReportProgressRequest) -> Answer<Self> {
        let items = std::mem::take(&mut request.reports);
        let with = |_: &v1::ReportProgressRequest, reports| v1::ReportProgressRequest { reports };
        by_lease::<Self, _>(call, (request, items), |item| (item.id, item.token), with, |all| &mut all.results).await
    }
}

merged!(ReportProgress: results);

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
    let (merged, unanswered) =
        call.split_items::<V, _, _>(request, items, (|item| lease(item).0, &lease), with).await?;
    // Every item gets a result, so the call succeeds even if no store has answered.
    let mut answer = merged.end(&[])?;
    for (store, leases) in &unanswered {
        results(answer.get_mut()).extend(leases.iter().map(|&(id, token)| unavailable(store, id, token)));
    }
    let names: Vec<&str> = unanswered.iter().map(|(name, _)| name.as_str()).collect();
    note_unanswered(&mut answer, &names);
    Ok(answer)
}

/// Result for an item whose store does not answer. It is unknown whether the item took effect, so the worker must send it
/// again.
fn unavailable(store: &str, id: i64, token: i64) -> v1::SettleResult {
    v1::SettleResult {
        id,
        token,
        status: v1::SettleStatus::Unavailable.into(),
        message: format!("store {store} did not answer in time; send this item again"),
    }
}
