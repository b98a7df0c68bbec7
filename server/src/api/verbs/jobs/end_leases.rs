//! `EndLeases`: ends the running attempts of jobs, so that other workers get them.

use howdah_proto::{Rpc, v1};

use crate::{
    access::{Operation, Rule},
    api::{
        answer,
        check::numbers,
        permit,
        verbs::{Answer, Call, Merge, Verb},
    },
    error::Error,
    job::{ClusterSettings, Limits, truncated},
};

/// The call `EndLeases`.
pub(crate) struct EndLeases;

impl Verb for EndLeases {
    const RPC: Rpc = Rpc::EndLeases;
    const RULE: Rule = Rule::Types(Operation::Operate);

    type Request = v1::EndLeasesRequest;
    type Response = v1::EndLeasesResponse;
    /// Checked request: the ids of the jobs, and the error text for their attempts.
    type Args = (Vec<i64>, Option<String>);

    fn check(request: v1::EndLeasesRequest, cluster: &ClusterSettings, limits: &Limits) -> Result<Self::Args, Error> {
        numbers::entries("ids", request.ids.len(), 1..=cluster.batch)?;
        Ok((request.ids, request.error.map(|error| truncated(&error, limits.error_bytes))))
    }

    fn answer_bytes(_: &Self::Args, _: &ClusterSettings) -> usize {
        answer::SHORT
    }

    async fn run(call: &mut Call, (ids, error): Self::Args) -> Result<v1::EndLeasesResponse, Error> {
        let by = call.by()?;
        let jobs = permit::own_jobs(&call.broker, &call.caller, ids.into()).await?;
        let ended_ids = call.broker.operator.end_leases(jobs, error.as_deref(), &by).await?;
        Ok(v1::EndLeasesResponse { ended_ids })
    }

    async fn route(call: &Call, request: v1::EndLeasesRequest) -> Answer<Self> {
        let ids = request.ids.clone();
        let with = |request: &v1::EndLeasesRequest, ids| v1::EndLeasesRequest { ids, ..request.clone() };
        call.split::<Self>(request, ids, with).await
    }
}

impl Merge for EndLeases {
    fn merge(all: &mut v1::EndLeasesResponse, part: v1::EndLeasesResponse, _: &str) {
        all.ended_ids.extend(part.ended_ids);
    }
}
