//! `ExtendJobs`: extends leases, for workers without a stream.

use std::time::Duration;

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Lease, Limits},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{by_lease, of_own};
use crate::api::{
    check::{self, Items},
    render,
    verbs::{Answer, Call, Merge, Verb},
};

/// The call `ExtendJobs`.
pub(crate) struct ExtendJobs;

impl Verb for ExtendJobs {
    const RPC: Rpc = Rpc::ExtendJobs;
    const RULE: Rule = Rule::Types(Operation::Work);

    type Request = v1::ExtendJobsRequest;
    type Response = v1::ExtendJobsResponse;
    type Args = Items<(Lease, Duration)>;

    fn check(request: v1::ExtendJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        check::extend(request.extensions, cluster)
    }

    async fn run(call: &mut Call, items: Self::Args) -> Result<v1::ExtendJobsResponse, Error> {
        let leases: Vec<Lease> = items.accepted.iter().map(|&(lease, _)| lease).collect();
        let extend = async |own| call.broker.workers.settle.extend(own).await;
        let statuses = of_own(call, &leases, items.accepted, extend).await?;
        Ok(v1::ExtendJobsResponse { results: render::settle_results(items.refused, leases, statuses) })
    }

    async fn route(call: &Call, mut request: v1::ExtendJobsRequest) -> Answer<Self> {
        let items = std::mem::take(&mut request.extensions);
        let with = |_: &v1::ExtendJobsRequest, extensions| v1::ExtendJobsRequest { extensions };
        by_lease::<Self, _>(call, (request, items), |item| (item.id, item.token), with, |all| &mut all.results).await
    }
}

impl Merge for ExtendJobs {
    fn merge(all: &mut v1::ExtendJobsResponse, part: v1::ExtendJobsResponse, _: &str) {
        all.results.extend(part.results);
    }
}
