//! `ReportProgress`: progress and checkpoints of running jobs, for workers without a stream.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Lease, Limits, ProgressReport},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{by_lease, of_own};
use crate::api::{
    check::{self, Items},
    render,
    verbs::{Answer, Call, Merge, Verb},
};

/// The call `ReportProgress`.
pub(crate) struct ReportProgress;

impl Verb for ReportProgress {
    const RPC: Rpc = Rpc::ReportProgress;
    const RULE: Rule = Rule::Types(Operation::Work);

    type Request = v1::ReportProgressRequest;
    type Response = v1::ReportProgressResponse;
    type Args = Items<ProgressReport>;

    fn check(request: v1::ReportProgressRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        check::progress(request.reports, cluster)
    }

    async fn run(call: &mut Call, items: Self::Args) -> Result<v1::ReportProgressResponse, Error> {
        let leases: Vec<Lease> = items.accepted.iter().map(|report| report.lease).collect();
        let report = async |own| call.broker.workers.progress.submit(own).await.wait().await;
        let statuses = of_own(call, &leases, items.accepted, report).await?;
        Ok(v1::ReportProgressResponse { results: render::settle_results(items.refused, leases, statuses) })
    }

    async fn route(call: &Call, mut request: v1::ReportProgressRequest) -> Answer<Self> {
        let items = std::mem::take(&mut request.reports);
        let with = |_: &v1::ReportProgressRequest, reports| v1::ReportProgressRequest { reports };
        by_lease::<Self, _>(call, (request, items), |item| (item.id, item.token), with, |all| &mut all.results).await
    }
}

impl Merge for ReportProgress {
    fn merge(all: &mut v1::ReportProgressResponse, part: v1::ReportProgressResponse, _: &str) {
        all.results.extend(part.results);
    }
}
