//! `SettleJobs`: outcomes of attempts, for workers without a stream.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Lease, Limits, Settlement},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{by_lease, of_own};
use crate::api::{
    check::{self, Items},
    render,
    verbs::{Answer, Call, Merge, Verb},
};

/// The call `SettleJobs`.
pub(crate) struct SettleJobs;

impl Verb for SettleJobs {
    const RPC: Rpc = Rpc::SettleJobs;
    const RULE: Rule = Rule::Types(Operation::Work);

    type Request = v1::SettleJobsRequest;
    type Response = v1::SettleJobsResponse;
    type Args = Items<Settlement>;

    fn check(
        request: v1::SettleJobsRequest,
        cluster: &ClusterSettings,
        limits: &Limits,
    ) -> Result<Items<Settlement>, Error> {
        check::settle(request.outcomes, cluster, limits)
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
        Ok(v1::SettleJobsResponse { results: render::settle_results(items.refused, leases, statuses) })
    }

    async fn route(call: &Call, mut request: v1::SettleJobsRequest) -> Answer<Self> {
        let items = std::mem::take(&mut request.outcomes);
        let with = |_: &v1::SettleJobsRequest, outcomes| v1::SettleJobsRequest { outcomes };
        by_lease::<Self, _>(call, (request, items), |item| (item.id, item.token), with, |all| &mut all.results).await
    }
}

impl Merge for SettleJobs {
    fn merge(all: &mut v1::SettleJobsResponse, part: v1::SettleJobsResponse, _: &str) {
        all.results.extend(part.results);
    }
}
