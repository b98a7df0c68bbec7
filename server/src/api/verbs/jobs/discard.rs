//! `DiscardJobs`: moves dead jobs to history.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, JobState, Limits},
};
use howdah_engine::{
    access::{Operation, Rule},
    operate::Selection,
};
use howdah_proto::{Rpc, v1};

use super::{of_ids, parts};
use crate::api::{
    answer,
    check::job_filter::selection,
    page_token, permit,
    verbs::{Answer, Call, Merge, Verb, paged},
};

/// The call `DiscardJobs`.
pub(crate) struct DiscardJobs;

impl Verb for DiscardJobs {
    const RPC: Rpc = Rpc::DiscardJobs;
    const RULE: Rule = Rule::Types(Operation::Operate);
    const ENTRY_BYTES: usize = 0;

    type Request = v1::DiscardJobsRequest;
    type Response = v1::DiscardJobsResponse;
    type Args = Selection;

    paged!(discarded_ids);

    fn check(request: v1::DiscardJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Selection, Error> {
        selection(request.filter, &request.page_token, &[JobState::Dead], cluster)
    }

    fn answer_bytes(_: &Selection, _: &ClusterSettings) -> usize {
        answer::SHORT
    }

    async fn run(call: &mut Call, selection: Selection) -> Result<v1::DiscardJobsResponse, Error> {
        let by = call.by()?;
        let selection = permit::own_selection(&call.broker, &call.caller, selection).await?;
        let (discarded_ids, next) = call.broker.operator.discard_jobs(selection, &by).await?;
        let next_page_token = next.map(page_token::encode).unwrap_or_default();
        Ok(v1::DiscardJobsResponse { discarded_ids, next_page_token })
    }

    async fn route(call: &Call, request: v1::DiscardJobsRequest) -> Answer<Self> {
        let (ids, task_type) = parts(request.filter.as_ref());
        if !task_type.is_empty() {
            return call.pages::<Self>(call.concerned(&task_type).await?, request).await;
        }
        let with = |request: &v1::DiscardJobsRequest, ids| v1::DiscardJobsRequest {
            filter: of_ids(request.filter.as_ref(), ids),
            ..request.clone()
        };
        call.split::<Self>(request, ids, with).await
    }
}

impl Merge for DiscardJobs {
    fn merge(all: &mut v1::DiscardJobsResponse, part: v1::DiscardJobsResponse, _: &str) {
        all.discarded_ids.extend(part.discarded_ids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_jobs_are_discarded() {
        let discard = |state| {
            let filter = Some(v1::JobFilter { task_type: "a".into(), state, ..Default::default() });
            let request = v1::DiscardJobsRequest { filter, ..Default::default() };
            DiscardJobs::check(request, &ClusterSettings::DEFAULT, &Limits::default())
        };
        assert!(discard(0).is_ok() && discard(5).is_ok());
        assert_eq!(discard(3).unwrap_err().field(), Some("filter.state"));
    }
}
